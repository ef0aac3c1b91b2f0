"""Kinds and degrees: how the shards of a value make up the global value, per mesh axis; verdicts, and cures."""
