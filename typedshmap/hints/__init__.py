"""Hints: what a Python type says of arrays and of the pytrees that hold them."""
