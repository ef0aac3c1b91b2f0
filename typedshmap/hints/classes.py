"""The public hints: ``Float[Array, "[batch/dp] d"]`` and ``PyTree[T, "S"]``, as classes.

They are classes so that beartype, ``isinstance`` and unions take them as they are. Each answers
``isinstance`` by the same check as every verb, in the region that the program is in.
"""

from __future__ import annotations

import copyreg
from functools import lru_cache
from typing import Any, Literal, get_args, get_origin

import jax
from jax.typing import ArrayLike

from ..errors import AnnotationSyntaxError
from ..errors.failures import Failure
from ..errors.wording import word
from ..notation.sizes import Sizes, Subject
from .array import ArrayHint, make
from .dtypes import NAMES
from .scope import current_region, current_scope
from .trees import Leaf, Node, build
from .walk import Walk

_CHECKED = Subject("checked", "checked")


def _examine(node: Node, value: Any) -> Walk:
    """Check a value where the program is, binding nothing."""
    scope = current_scope()
    walk = Walk(current_region(), scope.arguments if scope else {}, scope.sizes if scope else Sizes())
    walk.visit(node, value, _CHECKED)
    walk.settle()
    return walk


class CheckedMeta(type):
    """A class whose instances are the values that fit a hint."""

    __node__: Node

    def __instancecheck__(cls, value: Any) -> bool:
        walk = _examine(cls.__node__, value)
        scope = current_scope()
        if not walk.failures and scope is not None:
            scope.sizes = walk.sizes
        return not walk.failures

    def __instancecheck_str__(cls, value: Any) -> str:
        """What beartype says of a value that does not fit: a clause without a full stop."""
        failures = _examine(cls.__node__, value).failures
        return _clause(failures[0], cls.__name__) if failures else f"it fits {cls.__name__}"


def _clause(failure: Failure, hint: str) -> str:
    got = f" (got {failure.got})" if failure.got else ""
    return f"value {word(failure).problem}{got}, under {hint}"


def _reduce(cls: CheckedMeta) -> Any:
    return (_make_again, cls.__made_of__)  # type: ignore[attr-defined]


copyreg.pickle(CheckedMeta, _reduce)


def _make_again(maker: str, item: Any) -> Any:
    return (PyTree if maker == "PyTree" else DTYPES[maker])[item]


class Dtype:
    """A dtype name: ``Float``, which makes hints by ``Float[Array, "[batch/dp] d"]``.

    Attributes:
      dtypes: JAX's names of the dtypes that it takes; None for all.
    """

    def __init__(self, name: str, dtypes: tuple[str, ...] | None) -> None:
        self.__name__ = self.__qualname__ = name
        self.__module__ = "typedshmap"
        self.dtypes = dtypes

    def __repr__(self) -> str:
        return self.__name__

    def __reduce__(self) -> str:
        return self.__name__

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        name = self.__name__
        raise AnnotationSyntaxError(f'{name}(...): a hint is written in square brackets, as in {name}[Array, "b d"]')

    def __getitem__(self, item: Any) -> Any:
        try:
            return _hint_class(self, item)
        except TypeError as error:
            if isinstance(error, AnnotationSyntaxError) or "unhashable" not in str(error):
                raise
            return _hint_class.__wrapped__(self, item)


@lru_cache(maxsize=4096)
def _hint_class(dtype: Dtype, item: Any) -> Any:
    hint = make(dtype.__name__, dtype.dtypes, item)
    return class_of(hint, (dtype.__name__, item))


def class_of(hint: ArrayHint, made_of: Any) -> Any:
    """The class of a parsed hint."""
    return CheckedMeta(
        str(hint.text),
        (),
        {
            "__module__": "typedshmap",
            "__typedshmap__": hint,
            "__node__": Leaf(hint),
            "__made_of__": made_of,
            "dim_str": str(hint.spec),
            "dtypes": hint.dtypes,
            "array_type": hint.array_type,
        },
    )


class _TreeMeta(CheckedMeta):
    def __getitem__(cls, item: Any) -> Any:
        leaf, structure = item if isinstance(item, tuple) and len(item) == 2 else (item, None)
        if get_origin(structure) is Literal:  # how the name is written for static checkers
            structure = get_args(structure)[0]
        if structure is not None and not (isinstance(structure, str) and structure.isidentifier()):
            raise AnnotationSyntaxError(f"PyTree[..., {structure!r}]: the structure's name is an identifier, as in 'S'")
        return _tree_class(leaf, structure)


def _tree_class(leaf: Any, structure: str | None) -> Any:
    name = f"PyTree[{getattr(leaf, '__name__', leaf)}{f', {structure!r}' if structure else ''}]"
    members = {
        "__module__": "typedshmap",
        "leaftype": leaf,
        "structure": structure,
        "__made_of__": ("PyTree", leaf if structure is None else (leaf, structure)),
    }
    made = _TreeMeta(name, (), members)
    made.__node__ = build(made)
    return made


class PyTree(metaclass=_TreeMeta):
    """A pytree whose leaves all fit a hint: ``PyTree[Float[Array, "..."]]``.

    ``PyTree[T, "S"]`` gives the tree's structure a name; every tree of that name in a call has the
    same structure, and a dim ``?name`` in ``T`` may differ from leaf to leaf. A bare ``PyTree``
    takes any tree.
    """

    leaftype: Any = Any
    structure: str | None = None
    __made_of__ = ("PyTree", Any)


PyTree.__node__ = build(PyTree)

DTYPES: dict[str, Dtype] = {name: Dtype(name, dtypes) for name, dtypes in NAMES.items()}

Scalar = DTYPES["Shaped"][jax.Array, ""]
ScalarLike = DTYPES["Shaped"][ArrayLike, ""]
PRNGKeyArray = DTYPES["Key"][jax.Array, ""] | DTYPES["UInt32"][jax.Array, "2"]
