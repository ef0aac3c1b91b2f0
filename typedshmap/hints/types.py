"""The public hints: ``Float[Array, "[batch/dp] d"]`` and ``PyTree[T, "S"]``, as classes.

They are classes so that beartype, ``isinstance`` and unions take them as they are. ``isinstance`` makes the same check
as every verb, in the current mesh context.
"""

from __future__ import annotations

import copyreg
from functools import lru_cache
from types import UnionType
from typing import Any, Literal, Union, get_args, get_origin

import jax
from jax.typing import ArrayLike

from ..errors import AnnotationSyntaxError
from ..errors.failures import Failure
from ..errors.messages import word
from ..errors.phrases import value_text
from ..notation.match import Sizes, Subject
from .array_hint import NAMES, ArrayHint, parse_array_hint
from .check_tree import TreeCheck
from .context import current_mesh_context, current_scope
from .structure import ArrayLeaf, Node, hint_name, node_name, parse_hint

_CHECKED = Subject("checked", "checked")


def _check_value(node: Node, value: Any) -> TreeCheck:
    """Check a value where the program is, binding nothing."""
    scope = current_scope()
    # ``isinstance`` returns no value, so that nothing can be asserted of it for the analysis of the body.
    walk = TreeCheck(
        current_mesh_context(is_stated=False), scope.arguments if scope else {}, scope.sizes if scope else Sizes()
    )
    walk.visit(node, value, _CHECKED)
    walk.check_deferred()
    return walk


class CheckedMeta(type):
    """A class whose instances are the values that fit a hint."""

    __node__: Node

    def __instancecheck__(cls, value: Any) -> bool:
        walk = _check_value(cls.__node__, value)
        scope = current_scope()
        if not walk.failures and scope is not None:
            scope.sizes = walk.sizes
        return not walk.failures

    def __instancecheck_str__(cls, value: Any) -> str:
        """Beartype's message for a value that does not fit: a clause without a full stop."""
        failures = _check_value(cls.__node__, value).failures
        return _failure_clause(failures[0], cls.__name__) if failures else f"it fits {cls.__name__}"


def _failure_clause(failure: Failure, hint: str) -> str:
    got = f" (got {failure.got})" if failure.got else ""
    return f"value{failure.subject.path} {word(failure).problem}{got}, under {hint}"


def _reduce(cls: CheckedMeta) -> Any:
    if cls is PyTree or cls is Stacked:
        return cls.__name__
    maker, item = cls.__made_of__  # type: ignore[attr-defined]
    return (_rebuild, (maker, _pickle_item(item)))


def _rebuild(maker: str, item: Any) -> Any:
    makers: dict[str, Any] = {"PyTree": PyTree, "Stacked": Stacked}
    return (makers.get(maker) or DTYPES[maker])[_unpickle_item(item)]


class _PackedArray:
    """``jax.Array`` in a pickled hint; jax 0.10.2 cannot pickle the class itself."""


def _pickle_item(item: Any) -> Any:
    if item is jax.Array:
        return _PackedArray
    if isinstance(item, tuple):
        return tuple(map(_pickle_item, item))
    if get_origin(item) in (Union, UnionType):
        return [_pickle_item(member) for member in get_args(item)]
    return item


def _unpickle_item(item: Any) -> Any:
    if item is _PackedArray:
        return jax.Array
    if isinstance(item, tuple):
        return tuple(map(_unpickle_item, item))
    return Union[tuple(map(_unpickle_item, item))] if isinstance(item, list) else item  # noqa: UP007 (made from a tuple)


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
        array_type = item[0] if isinstance(item, tuple) and item else None
        members = get_args(array_type) if get_origin(array_type) in (Union, UnionType) else ()
        if any(isinstance(member, CheckedMeta) for member in members):
            # A hint inside a hint goes into every member of a union.
            return Union[tuple(self[(member, *item[1:])] for member in members)]  # noqa: UP007
        try:
            return _hint_class(self, item)
        except TypeError as error:
            if isinstance(error, AnnotationSyntaxError) or "unhashable" not in str(error):
                raise
            return _hint_class.__wrapped__(self, item)


@lru_cache(maxsize=4096)
def _hint_class(dtype: Dtype, item: Any) -> Any:
    hint = parse_array_hint(dtype.__name__, dtype.dtypes, item)
    return hint_class(hint, (dtype.__name__, item))


def hint_class(hint: ArrayHint, made_of: Any) -> Any:
    """The class of a parsed hint."""
    return CheckedMeta(
        str(hint.text),
        (),
        {
            "__module__": "typedshmap",
            "__typedshmap__": hint,
            "__node__": ArrayLeaf(hint),
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
        try:
            return _tree_class(leaf, structure)
        except TypeError as error:
            if isinstance(error, AnnotationSyntaxError) or "unhashable" not in str(error):
                raise
            return _tree_class.__wrapped__(leaf, structure)

    @property
    def __node__(cls) -> Node:  # type: ignore[override]
        return _node_of_class(cls)


@lru_cache(maxsize=1024)
def _tree_class(leaf: Any, structure: str | None) -> Any:
    name = f"PyTree[{_leaf_name(leaf)}{f', {structure!r}' if structure else ''}]"
    members = {
        "__module__": "typedshmap",
        "leaftype": leaf,
        "structure": structure,
        "__made_of__": ("PyTree", leaf if structure is None else (leaf, structure)),
    }
    return _TreeMeta(name, (), members)


def _leaf_name(leaf: Any) -> str:
    try:
        return node_name(parse_hint(leaf))
    except NameError:  # a class that names what is defined later; it is read when it is asked for
        return hint_name(leaf)


class _StackedMeta(CheckedMeta):
    def __getitem__(cls, item: Any) -> Any:
        if not isinstance(item, tuple) or len(item) != 2:
            raise AnnotationSyntaxError('Stacked[...]: wants leading dims and a hint, as in Stacked["layers", Layer]')
        dims, hint = item
        if get_origin(dims) is Literal:  # how the dims are written for static checkers
            dims = get_args(dims)[0]
        if not isinstance(dims, str):
            raise AnnotationSyntaxError(
                f'Stacked[{hint_name(dims)}, ...]: the leading dims are a string, as in Stacked["layers", Layer]'
            )
        if isinstance(hint, str) and not hint.isprintable():  # nor could a class bear it in its name
            raise AnnotationSyntaxError(f"Stacked[{dims!r}, {value_text(hint)}]: {value_text(hint)} is not a hint")
        members = {"__module__": "typedshmap", "__stacked__": (dims, hint), "__made_of__": ("Stacked", (dims, hint))}
        return _StackedMeta(f"Stacked[{dims!r}, {hint_name(hint)}]", (), members)

    @property
    def __node__(cls) -> Node:  # type: ignore[override]
        """Built when it is asked for, since a class may stack itself, in a string, while it is being read."""
        return _node_of_class(cls)


@lru_cache(maxsize=1024)
def _node_of_class(cls: Any) -> Node:
    return parse_hint(cls)


copyreg.pickle(CheckedMeta, _reduce)
copyreg.pickle(_TreeMeta, _reduce)
copyreg.pickle(_StackedMeta, _reduce)


class PyTree(metaclass=_TreeMeta):
    """A pytree whose leaves all fit a hint: ``PyTree[Float[Array, "..."]]``.

    ``PyTree[T, "S"]`` gives the tree's structure a name; every tree of that name in a call has the
    same structure, and a dim ``?name`` in ``T`` may differ from leaf to leaf. A bare ``PyTree``
    takes any tree.
    """

    leaftype: Any = Any
    structure: str | None = None
    __made_of__ = ("PyTree", Any)


class Stacked(metaclass=_StackedMeta):
    """The values of a hint whose every array has leading dims: ``Stacked["layers", Layer]``.

    It is what `jax.lax.scan` goes through and what `jax.vmap` of an initialiser makes. The leading
    dims are written as in any hint, names and brackets included.

    ```python
    class Layer(NamedTuple):
        w: Float[Array, "model [ff/tp]"]

    def forward(x: X, layers: Stacked["layers", Layer]) -> X:  # layers.w: f32[12,16,32]
        return jax.lax.scan(lambda x, layer: (block(x, layer), None), x, layers)[0]
    ```
    """

    __made_of__ = ("Stacked", None)


DTYPES: dict[str, Dtype] = {name: Dtype(name, dtypes) for name, dtypes in NAMES.items()}

Scalar = DTYPES["Shaped"][jax.Array, ""]
ScalarLike = DTYPES["Shaped"][ArrayLike, ""]
PRNGKeyArray = DTYPES["Key"][jax.Array, ""] | DTYPES["UInt32"][jax.Array, "2"]
