"""Hints: what a Python type declares of arrays and of the pytrees that hold them."""
