"""Frozen dataclasses whose methods are made with the first instance.

`dataclass` would take most of the import time of the package, and most programs use few of its classes: few have
errors, or expressions in their hints."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import MISSING, FrozenInstanceError, dataclass, field, fields
from operator import attrgetter
from threading import RLock
from typing import Any, ClassVar, dataclass_transform

_making = RLock()


@dataclass_transform(frozen_default=True, field_specifiers=(field,))
class Record:
    """A frozen dataclass. ``class Axis(Record, eq=False)`` is equal to itself only."""

    _options: ClassVar[Mapping[str, bool]]

    def __init_subclass__(cls, eq: bool = True, kw_only: bool = False) -> None:
        cls._options = {"eq": eq, "kw_only": kw_only}
        cls.__init__ = Record._make_and_init

    def __setstate__(self, state: dict[str, Any]) -> None:
        """Restore a copied or pickled instance, perhaps of another process."""
        self._make_class()
        self.__dict__.update(state)

    def __setattr__(self, name: str, value: object) -> None:
        raise FrozenInstanceError(f"cannot assign to field {name!r}")

    def __delattr__(self, name: str) -> None:
        raise FrozenInstanceError(f"cannot delete field {name!r}")

    def _make_and_init(self, *args: Any, **kwargs: Any) -> None:
        self._make_class()
        self.__init__(*args, **kwargs)

    @classmethod
    def _make_class(cls) -> None:
        with _making:
            for base in reversed(cls.__mro__):
                if issubclass(base, Record) and base.__dict__.get("__init__") is Record._make_and_init:
                    # The methods above freeze the class: `dataclass` takes twice as long to make them for each class.
                    dataclass(init=False, unsafe_hash=base._options["eq"], **base._options)(base)
                    base.__init__ = _init_of(base)  # last, since other threads use a class once it has this method


def _init_of(cls: Any) -> Any:
    """The ``__init__`` that `dataclass` would make, in less time."""
    parameters, lines, names = ["self"], list[str](), dict[str, Any](__set=object.__setattr__)
    for declared in sorted(fields(cls), key=attrgetter("kw_only")):
        name, value, default = declared.name, declared.name, declared.default
        if declared.default_factory is not MISSING:
            value, default = f"_{name}() if {name} is _{name} else {name}", declared.default_factory
        if declared.kw_only and "*" not in parameters:
            parameters.append("*")
        parameters.append(name if default is MISSING else f"{name}=_{name}")
        lines.append(f"__set(self, {name!r}, {value})")
        names[f"_{name}"] = default
    exec(f"def __init__({', '.join(parameters)}): {'; '.join(lines) or 'pass'}", names)
    names["__init__"].__qualname__ = f"{cls.__qualname__}.__init__"
    return names["__init__"]
