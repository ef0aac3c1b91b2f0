"""Test sharded programs: inputs made from their hints, and the same result demanded on every mesh."""

from .call import Inputs
from .inputs import inputs
from .strategies import strategies

__all__ = ["Inputs", "inputs", "strategies"]
