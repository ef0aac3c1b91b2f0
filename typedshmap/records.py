"""Frozen dataclasses that are made when there is an instance.

Most of what the import of the package would cost is `dataclass`, and most classes are of what one program in many has:
a thing that is wrong, an expression in a hint."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
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
        """Take what was copied or pickled, maybe in another process."""
        self._make_class()
        self.__dict__.update(state)

    def _make_and_init(self, *args: Any, **kwargs: Any) -> None:
        self._make_class()
        self.__init__(*args, **kwargs)

    @classmethod
    def _make_class(cls) -> None:
        with _making:
            for base in reversed(cls.__mro__):
                if issubclass(base, Record) and base.__dict__.get("__init__") is Record._make_and_init:
                    dataclass(frozen=True, init=False, **base._options)(base)
                    base.__init__ = base._dataclass_init()  # at last, since a class that has it is made for all threads

    @classmethod
    def _dataclass_init(cls) -> Any:
        """The ``__init__`` that `dataclass` makes of a class; it makes none where there is one."""
        made = type(cls.__name__, (cls,), {"__doc__": cls.__doc__})  # one without is given its signature, which is slow
        del made.__init__
        return dataclass(frozen=True, repr=False, eq=False, match_args=False)(made).__init__
