"""``explain``: a function's values and collectives on a mesh, told from its hints and its traced program."""

from .model import Collective, Explained, Failed, Memory, Total, Value

__all__ = ["Collective", "Explained", "Failed", "Memory", "Total", "Value"]
