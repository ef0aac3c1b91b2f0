"""What each primitive makes of the entries of its operands."""

from __future__ import annotations

from .arithmetic import ARITHMETIC_RULES
from .collectives import COLLECTIVE_RULES
from .control import CONTROL_RULES
from .moving import MOVING_RULES
from .opaque import OPAQUE_RULES, opaque
from .ordering import ORDERING_RULES
from .walk import EntryRule

ENTRY_RULES: dict[str, EntryRule] = {
    **OPAQUE_RULES,
    **ARITHMETIC_RULES,
    **ORDERING_RULES,
    **MOVING_RULES,
    **COLLECTIVE_RULES,
    **CONTROL_RULES,
    "": opaque,
}
"""By primitive what its results are; under "" that of any other, of which only its name is known."""
