"""Text and numbers: what a hint says, before any array is seen. Standard library only."""
