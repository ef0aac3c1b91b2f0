"""Kinds and degrees: what a value of a manual region is of the whole, per mesh axis; verdicts on results, and cures."""
