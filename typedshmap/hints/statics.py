"""Check values without arrays against their Python types, by beartype.

Plain classes are asked by ``isinstance``; beartype is imported when a hint needs it, since
importing it costs as much as half of the library.
"""

from __future__ import annotations

from typing import Any

_PLAIN = (bool, int, str, bytes, list, tuple, dict, set, frozenset, type(None))


def fits(value: Any, hint: Any) -> bool:
    """Whether a value is of a Python type, ints counting as floats and floats as complex."""
    if hint in _PLAIN:
        return isinstance(value, hint)
    if hint is float:
        return isinstance(value, (float, int))
    if hint is complex:
        return isinstance(value, (complex, float, int))
    return _is_bearable(value, hint)


def _is_bearable(value: Any, hint: Any) -> bool:
    from beartype import BeartypeConf
    from beartype.door import is_bearable

    return is_bearable(value, hint, conf=BeartypeConf(is_pep484_tower=True))
