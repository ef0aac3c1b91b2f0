"""Text and numbers: the meaning of a hint without an array. Standard library only."""
