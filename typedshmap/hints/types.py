"""The public hints: ``Float[Array, "[batch/dp] d"]`` and ``PyTree[T, "S"]``, as classes.

They are classes so that beartype, ``isinstance`` and unions accept them. ``isinstance`` makes the same check as all
verbs, in the current mesh context.
"""

from __future__ import annotations

import copyreg
from functools import lru_cache, reduce
from operator import or_
from types import UnionType
from typing import Any, Literal, Union, get_args, get_origin

import jax
from jax.typing import ArrayLike

from .._jax.array import NAMES
from ..errors import AnnotationSyntaxError
from ..errors.failures import Subject
from ..errors.phrases import count_text, value_text
from .array_hint import parse_array_hint, read_array_hint, union_members
from .check_tree import TreeCheck, check_value
from .context import CallScope, current_mesh_context, isinstance_scope
from .parse_hint import parse_hint, parse_structure, plain_classes
from .structure import ArrayLeaf, Node, hint_name, node_name

_CHECKED = Subject("checked", "checked")


def _check_value(node: Node, value: Any) -> tuple[TreeCheck, CallScope]:
    """Check a value in the current context; the scope's sizes are not updated."""
    scope = isinstance_scope()
    # ``isinstance`` returns no value whose layout could be asserted for the analysis of the body.
    region = current_mesh_context(is_stated=False)
    return check_value(node, value, _CHECKED, region, scope.arguments, scope.sizes), scope


class CheckedMeta(type):
    """A class whose instances are the values that fit a hint."""

    __node__: Node

    def __call__(cls, *args: Any, **kwargs: Any) -> Any:
        raise AnnotationSyntaxError(f"{cls.__name__} is a hint and has no instances")

    def __instancecheck__(cls, value: Any) -> bool:
        checked, scope = _check_value(cls.__node__, value)
        if not checked.failures:
            scope.sizes = checked.sizes
        return not checked.failures

    def _repr_html_(cls) -> str | None:
        """The picture of the hint of an array for notebooks; other hints are shown as text."""
        # Imported for notebooks only.
        from .hint_picture import picture_of

        hint = getattr(cls, "__typedshmap__", None)
        return None if hint is None else picture_of(hint)

    def __instancecheck_str__(cls, value: Any) -> str:
        """Beartype's message for a value that does not fit: a clause without a full stop."""
        failures = _check_value(cls.__node__, value)[0].failures
        if not failures:
            return f"it fits {cls.__name__}"
        got = f" (got {failures[0].got})" if failures[0].got else ""
        return f"value{failures[0].subject.path} {failures[0].words().problem}{got}, under {cls.__name__}"


def _reduce(cls: CheckedMeta) -> Any:
    if cls is PyTree or cls is Stacked or cls is Like:
        return cls.__name__
    maker, item = cls.__made_of__  # type: ignore[attr-defined]
    return (_rebuild, (maker, _replaced(item, jax.Array, _PackedArray)))


def _rebuild(maker: str, item: Any) -> Any:
    makers: dict[str, Any] = {"PyTree": PyTree, "Stacked": Stacked, "Like": Like, **DTYPES}
    return makers[maker][_replaced(item, _PackedArray, jax.Array)]


class _PackedArray:
    """``jax.Array`` in a pickled hint; jax 0.10.2 cannot pickle the class itself."""


def _replaced(item: Any, old: type, new: type) -> Any:
    """The item of a hint, with one class replaced."""
    if isinstance(item, tuple):
        return tuple(_replaced(part, old, new) for part in item)
    if get_origin(item) in (Union, UnionType):
        return Union[tuple(_replaced(member, old, new) for member in get_args(item))]  # noqa: UP007 (made from a tuple)
    return new if item is old else item


def _made(meta: Any, name: str, made_of: tuple[str, Any], **members: Any) -> Any:
    """A class for a hint; ``made_of`` is the content of its pickle."""
    return meta(name, (), {"__module__": "typedshmap", "__made_of__": made_of, **members})


def _make_cached(make: Any, *items: Any) -> Any:
    """The class that a cached function makes from a hint's items, which may be unhashable."""
    try:
        return make(*items)
    except TypeError as error:
        if "unhashable" not in str(error):
            raise
        return make.__wrapped__(*items)


class Dtype:
    """A dtype name: ``Float``, which makes hints by ``Float[Array, "[batch/dp] d"]``.

    Attributes:
      dtypes: JAX's names of the dtypes that it accepts; None for all.
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

    def __instancecheck__(self, value: Any) -> bool:
        name = self.__name__
        raise AnnotationSyntaxError(f'isinstance(..., {name}): a hint has dims too, as in {name}[Array, "..."]')

    def __getitem__(self, item: Any) -> Any:
        members = list(union_members(item[0])) if isinstance(item, tuple) and item else []
        if len(members) > 1 and any(read_array_hint(member) is not None for member in members):
            # A hint inside a union: distribute over the members.
            return reduce(or_, (self[(member, *item[1:])] for member in members))
        return _make_cached(_hint_class, self, item)


@lru_cache(maxsize=4096)  # one class for equal hints
def _hint_class(dtype: Dtype, item: Any) -> Any:
    hint = parse_array_hint(dtype.__name__, dtype.dtypes, item)
    as_jaxtyping = {"dtype": DTYPES.get(hint.dtype_name, dtype), "dim_str": str(hint.spec), "dtypes": hint.dtypes}
    as_jaxtyping["array_type"] = hint.array_type
    made_of = (dtype.__name__, item)
    return _made(CheckedMeta, str(hint.text), made_of, __typedshmap__=hint, __node__=ArrayLeaf(hint), **as_jaxtyping)


@lru_cache(maxsize=1024)  # `isinstance` of a tree takes 1.8 times the calls without it
def _node_of_class(cls: Any) -> Node:
    try:
        return parse_hint(cls)
    except NameError as error:
        raise AnnotationSyntaxError(f"{hint_name(cls)} names '{error.name}', which is not defined") from None


class _LateMeta(CheckedMeta):
    # A property, since a class may stack itself, in a string, while it is being read.
    __node__ = property(_node_of_class)  # type: ignore[assignment]


class _TreeMeta(_LateMeta):
    def __getitem__(cls, item: Any) -> Any:
        if isinstance(item, tuple) and len(item) != 2:
            got = count_text(len(item), "item")
            raise AnnotationSyntaxError(
                f'PyTree[...]: expects a hint and at most a structure, as in PyTree[T, "S"]; got {got}'
            )
        leaf, structure = item if isinstance(item, tuple) else (item, None)
        if get_origin(structure) is Literal:  # how the name is written for static checkers
            structure = get_args(structure)[0]
        return _make_cached(_tree_class, leaf, None if structure is None else " ".join(parse_structure(structure)))


@lru_cache(maxsize=1024)  # one class for equal hints
def _tree_class(leaf: Any, structure: str | None) -> Any:
    try:
        leaf_name = node_name(parse_hint(leaf))
    except NameError:  # a class with names that are defined later; it is parsed at its first use
        leaf_name = hint_name(leaf)
    name = f"PyTree[{leaf_name}{f', {structure!r}' if structure else ''}]"
    made_of = ("PyTree", leaf if structure is None else (leaf, structure))
    return _made(_TreeMeta, name, made_of, leaftype=leaf, structure=structure)


class _StackedMeta(_LateMeta):
    def __getitem__(cls, item: Any) -> Any:
        if not isinstance(item, tuple) or len(item) != 2:
            raise AnnotationSyntaxError('Stacked[...]: expects leading dims and a hint, as in Stacked["layers", Layer]')
        dims, hint = item
        if get_origin(dims) is Literal:  # how the dims are written for static checkers
            dims = get_args(dims)[0]
        if not isinstance(dims, str):
            raise AnnotationSyntaxError(
                f'Stacked[{hint_name(dims)}, ...]: the leading dims are a string, as in Stacked["layers", Layer]'
            )
        if isinstance(hint, str) and not hint.isprintable():  # a class cannot have it in its name
            raise AnnotationSyntaxError(f"Stacked[{dims!r}, {value_text(hint)}]: {value_text(hint)} is not a hint")
        name = f"Stacked[{dims!r}, {hint_name(hint)}]"
        return _made(_StackedMeta, name, ("Stacked", (dims, hint)), __stacked__=(dims, hint))


class _LikeMeta(_LateMeta):
    def __getitem__(cls, item: Any) -> Any:
        if not isinstance(item, tuple) or len(item) != 2:
            raise AnnotationSyntaxError("Like[...]: expects a class and a hint, as in Like[optax.OptState, Params]")
        kind, hint = item
        if not isinstance(kind, type) and kind is not Any and get_origin(kind) is None:
            raise AnnotationSyntaxError(f"Like[{value_text(kind)}, ...]: {value_text(kind)} is not a class, nor Any")
        name = f"Like[{hint_name(kind) if isinstance(kind, type) or kind is Any else '...'}, {_item_name(hint)}]"
        # An alias such as optax.OptState names classes that cannot be pickled, and requires nothing.
        made_of = ("Like", (kind if plain_classes(kind) else Any, hint))
        return _made(_LikeMeta, name, made_of, __like__=item)


def _item_name(hint: Any) -> str:
    """A hint in the name of a class: short and printable."""
    return hint_name(hint) if isinstance(hint, type) or get_origin(hint) is not None else value_text(hint)


for _meta in (CheckedMeta, _TreeMeta, _StackedMeta, _LikeMeta):
    copyreg.pickle(_meta, _reduce)


class PyTree(metaclass=_TreeMeta):
    """A pytree whose leaves all fit a hint: ``PyTree[Float[Array, "..."]]``.

    ``PyTree[T, "S"]`` names the tree structure; all trees with that name in a call have the same
    structure, and a dim ``?name`` in ``T`` may differ between leaves. ``"S T"`` is a tree of structure
    ``S`` with a tree of structure ``T`` at each leaf, ``"S ..."`` has any trees at the leaves, and
    ``"... T"`` is any tree of trees ``T``. A bare ``PyTree`` accepts any tree; its arrays are unsharded.
    """

    leaftype: Any = Any
    structure: str | None = None
    __made_of__ = ("PyTree", Any)


class Stacked(metaclass=_StackedMeta):
    """A hint whose arrays all have leading dims: ``Stacked["layers", Layer]``.

    Use it for layers that `jax.lax.scan` scans over, or for the result of `jax.vmap` of an initializer.
    The leading dims are written as in any hint, with names and brackets.

    ```python
    class Layer(NamedTuple):
        w: Float[Array, "model [ff/tp]"]

    def forward(x: X, layers: Stacked["layers", Layer]) -> X:  # layers.w: f32[12,16,32]
        return jax.lax.scan(lambda x, layer: (block(x, layer), None), x, layers)[0]
    ```
    """

    __made_of__ = ("Stacked", None)


class Like(metaclass=_LikeMeta):
    """A pytree of another library, sharded like parameters that have hints: ``Like[optax.OptState, Params]``.

    The first item is the class of the root; ``Any`` and aliases such as ``optax.OptState`` require nothing. The
    largest subtrees with the structure of ``Params`` have the shapes and shardings of ``Params``; their dtypes may
    differ, and None, ``optax.MaskedNode`` or another empty node may replace an array. Other arrays, such as counts,
    are unsharded.

    ```python
    @typed_jit(mesh=mesh, donate_argnames=("params", "state"))
    def step(
        params: Params, state: Like[optax.OptState, Params], batch: Batch
    ) -> tuple[Params, Like[optax.OptState, Params]]:
        updates, state = optimizer.update(jax.grad(loss)(params, batch), state, params)
        return optax.apply_updates(params, updates), state
    ```

    A subtree matches if it has the field or key names of the hint and no other arrays; layers of other libraries too.
    A hint without names (one array, ``dict[str, W]``, ``list[W]``) matches a subtree with its containers and ranks.
    If subtrees with the parameters' structure hold arrays of other shapes, use a union: ``Params |
    Stacked["memory", Params]`` for L-BFGS, ``Params | PyTree[Float[Array, "..."]]`` for Adafactor, whose factors are
    then unsharded.
    """

    __made_of__ = ("Like", None)


DTYPES: dict[str, Dtype] = {name: Dtype(name, dtypes) for name, dtypes in NAMES.items()}

Scalar = DTYPES["Shaped"][jax.Array, ""]
ScalarLike = DTYPES["Shaped"][ArrayLike, ""]
PRNGKeyArray = DTYPES["Key"][jax.Array, ""] | DTYPES["UInt32"][jax.Array, "2"]
