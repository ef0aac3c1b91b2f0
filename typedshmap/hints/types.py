"""The public hints: ``Float[Array, "[batch/dp] d"]`` and ``PyTree[T, "S"]``, as classes.

They are classes so that beartype, ``isinstance`` and unions take them as they are. ``isinstance`` makes the same check
as every verb, in the current mesh context.
"""

from __future__ import annotations

import copyreg
from functools import lru_cache, reduce
from operator import or_
from types import UnionType
from typing import Any, Literal, Union, get_args, get_origin

import jax
from jax.typing import ArrayLike

from ..errors import AnnotationSyntaxError
from ..errors.failures import Subject
from ..errors.phrases import count_text, value_text
from .array_hint import NAMES, parse_array_hint, read_array_hint, union_members
from .check_tree import TreeCheck, check_value
from .context import CallScope, current_mesh_context, isinstance_scope
from .parse_hint import parse_hint, parse_structure, plain_classes
from .structure import ArrayLeaf, Node, hint_name, node_name

_CHECKED = Subject("checked", "checked")


def _check_value(node: Node, value: Any) -> tuple[TreeCheck, CallScope]:
    """Check a value where the program is, in whose scope nothing is bound yet."""
    scope = isinstance_scope()
    # ``isinstance`` returns no value, so that nothing can be asserted of it for the analysis of the body.
    region = current_mesh_context(is_stated=False)
    return check_value(node, value, _CHECKED, region, scope.arguments, scope.sizes), scope


class CheckedMeta(type):
    """A class whose instances are the values that fit a hint."""

    __node__: Node

    def __call__(cls, *args: Any, **kwargs: Any) -> Any:
        raise AnnotationSyntaxError(f"{cls.__name__} is a hint, of which there are no instances")

    def __instancecheck__(cls, value: Any) -> bool:
        checked, scope = _check_value(cls.__node__, value)
        if not checked.failures:
            scope.sizes = checked.sizes
        return not checked.failures

    def _repr_html_(cls) -> str | None:
        """What a notebook shows of the hint of an array; of others it shows the text."""
        # Only a notebook draws.
        from .picture import picture_of

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
    """What a hint was made of, with one class for another."""
    if isinstance(item, tuple):
        return tuple(_replaced(part, old, new) for part in item)
    if get_origin(item) in (Union, UnionType):
        return Union[tuple(_replaced(member, old, new) for member in get_args(item))]  # noqa: UP007 (made from a tuple)
    return new if item is old else item


def _make_cached(make: Any, *items: Any) -> Any:
    """The class that a cached function makes of what is in a hint's brackets, which may have no hash."""
    try:
        return make(*items)
    except TypeError as error:
        if "unhashable" not in str(error):
            raise
        return make.__wrapped__(*items)


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

    def __instancecheck__(self, value: Any) -> bool:
        name = self.__name__
        raise AnnotationSyntaxError(f'isinstance(..., {name}): a hint has dims too, as in {name}[Array, "..."]')

    def __getitem__(self, item: Any) -> Any:
        members = list(union_members(item[0])) if isinstance(item, tuple) and item else []
        if len(members) > 1 and any(read_array_hint(member) is not None for member in members):
            # A hint inside a hint goes into every member of a union.
            return reduce(or_, (self[(member, *item[1:])] for member in members))
        return _make_cached(_hint_class, self, item)


@lru_cache(maxsize=4096)
def _hint_class(dtype: Dtype, item: Any) -> Any:
    hint = parse_array_hint(dtype.__name__, dtype.dtypes, item)
    members = {
        "__module__": "typedshmap",
        "__typedshmap__": hint,
        "__node__": ArrayLeaf(hint),
        "__made_of__": (dtype.__name__, item),
        "dtype": DTYPES.get(hint.dtype_name, dtype),
        "dim_str": str(hint.spec),
        "dtypes": hint.dtypes,
        "array_type": hint.array_type,
    }
    return CheckedMeta(str(hint.text), (), members)


@lru_cache(maxsize=1024)
def _node_of_class(cls: Any) -> Node:
    try:
        return parse_hint(cls)
    except NameError as error:
        raise AnnotationSyntaxError(f"{hint_name(cls)} names '{error.name}', which is not defined") from None


class _LateMeta(CheckedMeta):
    # Built when it is asked for, since a class may stack itself, in a string, while it is being read.
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


@lru_cache(maxsize=1024)
def _tree_class(leaf: Any, structure: str | None) -> Any:
    try:
        leaf_name = node_name(parse_hint(leaf))
    except NameError:  # a class that names what is defined later; it is read when it is asked for
        leaf_name = hint_name(leaf)
    name = f"PyTree[{leaf_name}{f', {structure!r}' if structure else ''}]"
    members = {
        "__module__": "typedshmap",
        "leaftype": leaf,
        "structure": structure,
        "__made_of__": ("PyTree", leaf if structure is None else (leaf, structure)),
    }
    return _TreeMeta(name, (), members)


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
        if isinstance(hint, str) and not hint.isprintable():  # nor could a class bear it in its name
            raise AnnotationSyntaxError(f"Stacked[{dims!r}, {value_text(hint)}]: {value_text(hint)} is not a hint")
        members = {"__module__": "typedshmap", "__stacked__": (dims, hint), "__made_of__": ("Stacked", (dims, hint))}
        return _StackedMeta(f"Stacked[{dims!r}, {hint_name(hint)}]", (), members)


class _LikeMeta(_LateMeta):
    def __getitem__(cls, item: Any) -> Any:
        if not isinstance(item, tuple) or len(item) != 2:
            raise AnnotationSyntaxError("Like[...]: expects a class and a hint, as in Like[optax.OptState, Params]")
        kind, hint = item
        if not isinstance(kind, type) and kind is not Any and get_origin(kind) is None:
            raise AnnotationSyntaxError(f"Like[{value_text(kind)}, ...]: {value_text(kind)} is not a class, nor Any")
        name = f"Like[{hint_name(kind) if isinstance(kind, type) or kind is Any else '...'}, {_item_name(hint)}]"
        # An alias such as optax.OptState names what cannot be pickled, and says nothing.
        made_of = ("Like", (kind if plain_classes(kind) else Any, hint))
        return _LikeMeta(name, (), {"__module__": "typedshmap", "__like__": item, "__made_of__": made_of})


def _item_name(hint: Any) -> str:
    """A hint in the name of a class, which bears no text that is long or cannot be printed."""
    return hint_name(hint) if isinstance(hint, type) or get_origin(hint) is not None else value_text(hint)


for _meta in (CheckedMeta, _TreeMeta, _StackedMeta, _LikeMeta):
    copyreg.pickle(_meta, _reduce)


class PyTree(metaclass=_TreeMeta):
    """A pytree whose leaves all fit a hint: ``PyTree[Float[Array, "..."]]``.

    ``PyTree[T, "S"]`` gives the tree's structure a name; every tree of that name in a call has the
    same structure, and a dim ``?name`` in ``T`` may differ from leaf to leaf. ``"S T"`` is a tree of
    structure ``S`` with one of structure ``T`` at each leaf, ``"S ..."`` one with any trees there, and
    ``"... T"`` any tree of trees ``T``. A bare ``PyTree`` takes any tree, whose arrays are unsharded.
    """

    leaftype: Any = Any
    structure: str | None = None
    __made_of__ = ("PyTree", Any)


class Stacked(metaclass=_StackedMeta):
    """A hint whose arrays all have leading dims: ``Stacked["layers", Layer]``.

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


class Like(metaclass=_LikeMeta):
    """A pytree of another library, sharded like parameters that have hints: ``Like[optax.OptState, Params]``.

    The first item is the class of its root, or anything: of ``Any`` and of an alias such as ``optax.OptState`` nothing
    is required. Its largest sub-trees of the structure of ``Params`` have the shapes and shardings of ``Params``; their
    dtypes are their own, and None, ``optax.MaskedNode`` or another empty node may be in the place of an array. Its
    other arrays, such as counts, are unsharded.

    ```python
    @typed_jit(mesh=mesh, donate_argnames=("params", "state"))
    def step(
        params: Params, state: Like[optax.OptState, Params], batch: Batch
    ) -> tuple[Params, Like[optax.OptState, Params]]:
        updates, state = optimizer.update(jax.grad(loss)(params, batch), state, params)
        return optax.apply_updates(params, updates), state
    ```

    The names of fields or keys show where a sub-tree is: whatever has those of the hint and no other arrays, layers of
    other libraries too. A hint without names (one array, ``dict[str, W]``, ``list[W]``) is looked for by its ranks: it
    is what has its containers and an array of as many dims.
    Where trees of the parameters' structure hold arrays of other shapes, a union says which: ``Params |
    Stacked["memory", Params]`` for L-BFGS, ``Params | PyTree[Float[Array, "..."]]`` for Adafactor, whose factors are
    then unsharded.
    """

    __made_of__ = ("Like", None)


DTYPES: dict[str, Dtype] = {name: Dtype(name, dtypes) for name, dtypes in NAMES.items()}

Scalar = DTYPES["Shaped"][jax.Array, ""]
ScalarLike = DTYPES["Shaped"][ArrayLike, ""]
PRNGKeyArray = DTYPES["Key"][jax.Array, ""] | DTYPES["UInt32"][jax.Array, "2"]
