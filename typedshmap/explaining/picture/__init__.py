"""A picture of a program: its values as boxes, its collectives as arrows."""

from .figure import figure

__all__ = ["figure"]
