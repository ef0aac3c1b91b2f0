"""``explain``: a function's values and collectives on a mesh, told from its hints and its traced program."""

from .explanation import Comparison, Explanation
from .model import Collective, Explained, Failed, Memory, Total, Value
from .verb import explain

__all__ = ["Collective", "Comparison", "Explained", "Explanation", "Failed", "Memory", "Total", "Value", "explain"]
