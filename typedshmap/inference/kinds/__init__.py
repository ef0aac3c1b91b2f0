"""What a value of a manual region is of the whole: its kind and its degree, per mesh axis; verdicts, and cures."""
