"""Hints: Python types that declare arrays, and the pytrees that hold them."""
