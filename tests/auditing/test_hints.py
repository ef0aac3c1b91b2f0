"""`audit(hints=True)`: the signature that the calls of a region suggest, never narrower than they are."""

from __future__ import annotations

import re
from collections.abc import Callable
from functools import partial
from operator import attrgetter
from types import FunctionType
from typing import Any, TypedDict

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax
from jax.sharding import AbstractMesh, AxisType, NamedSharding
from jax.sharding import PartitionSpec as P
from plain_programs import RIGHT, Program

import typedshmap
from typedshmap import VaryingError, audit, typed_shard_map
from typedshmap.testing import assert_same_program
from typedshmap.tools.audit import SuggestedHints

pytestmark = pytest.mark.skipif(jax.__version_info__ < (0, 10, 2), reason="below jax 0.10.2 calls are not seen")

MESH = AbstractMesh((4, 2), ("dp", "tp"), axis_types=(AxisType.Auto,) * 2)


def ones(*shape: int) -> np.ndarray:
    return np.ones(shape, np.float32)


def mapped(f: Callable[..., Any], in_specs: Any, out_specs: Any, **options: Any) -> Callable[..., Any]:
    return jax.shard_map(f, mesh=MESH, in_specs=in_specs, out_specs=out_specs, **options)


def suggested(*calls: Callable[[], Any]) -> list[SuggestedHints]:
    with audit(hints=True) as report:
        for call in calls:
            jax.eval_shape(call)
    return report.hints


def text_of(*calls: Callable[[], Any]) -> str:
    """The text for the only region, its lines named by this file alone."""
    (found,) = suggested(*calls)
    assert found.calls == len(calls)
    return re.sub(r"\S*test_hints\.py:\d+", "here", found.text)


# What is said


def test_dims_are_named_where_the_source_names_them() -> None:
    def attend(q, k, v):
        b, s, h, d = q.shape  # noqa: RUF059
        scores = jnp.einsum("bshd,bthd->bhst", q, k)
        return jnp.einsum("bhst,bthd->bshd", jax.nn.softmax(scores * d**-0.5), v)

    spec = P("dp", None, "tp")
    call = mapped(attend, (spec,) * 3, spec)
    assert text_of(lambda: call(ones(8, 16, 2, 4), ones(8, 32, 2, 4), ones(8, 32, 2, 4))) == (
        "def attend(\n"
        '    q: Float[Array, "[b/dp] s [h/tp] d"],\n'
        '    k: Float[Array, "[b/dp] t [h/tp] d"],\n'
        '    v: Float[Array, "[b/dp] t [h/tp] d"],\n'
        ') -> Float[Array, "[b/dp] s [h/tp] d"]: ...\n\n'
        "typed_shard_map(attend, mesh=mesh)  # here"
    )


def test_axes_have_a_name_where_callers_disagree() -> None:
    def scaled(x, scale):
        rows, d = x.shape  # noqa: RUF059
        return x * scale

    def call(rows: Any, columns: Any) -> Any:
        spec = P(rows, columns)
        return mapped(scaled, (spec, P(columns)), spec, check_vma=False)(ones(8, 4), ones(4))

    calls = [
        lambda: call("dp", None),
        lambda: call(("dp", "tp"), None),
        lambda: call("dp", "tp"),
    ]
    assert text_of(*calls) == (
        "def scaled(\n"
        '    x: Float[Array, "[rows/rows_axes] [d/d_axes]"],\n'
        '    scale: Float[Array, "[_/d_axes]"],\n'
        ') -> Float[Array, "[_/rows_axes] [_/d_axes]"]: ...\n\n'
        'typed_shard_map(scaled, mesh=mesh, check_vma=False, axes={"rows_axes": "dp", "d_axes": None})'
        "  # here from here\n"
        'typed_shard_map(scaled, mesh=mesh, check_vma=False, axes={"rows_axes": ("dp", "tp"), "d_axes": None})'
        "  # here from here\n"
        'typed_shard_map(scaled, mesh=mesh, check_vma=False, axes={"rows_axes": "dp", "d_axes": "tp"})'
        "  # here from here"
    )


def test_callers_that_disagree_have_the_same_programs_under_the_hints() -> None:
    def scaled(x, scale):
        return x * scale

    specs = [(P(rows, None), P()) for rows in ("dp", ("dp", "tp"), None)]
    plain = [mapped(scaled, each, each[0]) for each in specs]
    (found,) = suggested(*(partial(each, ones(8, 4), ones(4)) for each in plain))
    signature, _, calls = found.text.partition("\n\n")
    for by_hand, call in zip(plain, calls.splitlines(), strict=True):
        one = found._replace(text=f"{signature}\n{call}")
        assert_same_program(typed_by(one, scaled, (None, None)), by_hand, ones(8, 4), ones(4))


def test_what_differs_between_calls_is_left_open() -> None:
    def doubled(x, y=None):
        return x * 2

    call = mapped(doubled, (P("dp"), None), P("dp"))
    more = mapped(doubled, (P("dp"), P()), P("dp"))
    calls = [
        lambda: call(ones(8, 4), None),
        lambda: call(ones(8, 4, 2), None),
        lambda: more(np.ones(8, np.int32), ones(2)),
    ]
    assert text_of(*calls) == (
        "def doubled(\n"
        '    x: Num[Array, "[_/dp] ..."],\n'
        '    y: Float[Array, "_"] | None = None,\n'
        ') -> Num[Array, "[_/dp] ..."]: ...\n\n'
        "typed_shard_map(doubled, mesh=mesh)  # here, here, here"
    )


def test_an_array_of_lower_rank_than_another_is_sharded_keeps_its_spec() -> None:
    def doubled(x):
        return x * 2

    by_rank = [(ones(3, 4, 2), P(None, None, "tp")), (ones(3, 2), P(None, "tp"))]
    calls = [partial(mapped(doubled, spec, spec), x) for x, spec in by_rank]
    assert text_of(*calls) == (
        "def doubled(x): ...\n"
        "# x keeps its spec: no hint says all that were seen\n"
        "# the result keeps its spec: no hint says all that were seen\n\n"
        "typed_shard_map(doubled, mesh=mesh, in_specs=in_specs, out_specs=out_specs)  # here"
    )


def test_a_tree_of_sharded_arrays_and_scalars_has_a_hint_for_each() -> None:
    def step(state):
        return state["w"].sum(1) + state["count"]

    call = mapped(step, ({"w": P("dp"), "count": P()},), P("dp"))
    assert text_of(lambda: call({"w": ones(8, 4), "count": np.int32(0)})) == (
        "class State(TypedDict):\n"
        '    count: Int[Array, ""]\n'
        '    w: Float[Array, "[_/dp] _"]\n\n\n'
        'def step(state: State) -> Float[Array, "[_/dp]"]: ...\n\n'
        "typed_shard_map(step, mesh=mesh)  # here"
    )


def test_an_argument_that_some_callers_leave_out_has_the_axes_of_another() -> None:
    def scaled(x, scale=None):
        return x if scale is None else x * scale

    def call(axis: Any, *args: Any) -> Any:
        return mapped(scaled, (P(axis),) * len(args), P(axis))(*args)

    x = ones(8)
    (found,) = suggested(*(partial(call, axis, x, *more) for axis in ("dp", "tp") for more in ((), (x,))))
    assert found.text.partition("\n\n")[0] == (
        "def scaled(\n"
        '    x: Float[Array, "[_/x_0]"],\n'
        '    scale: Float[Array, "[_/x_0]"] | None = None,\n'
        ') -> Float[Array, "[_/x_0]"]: ...'
    )


def test_trees_options_and_what_is_static() -> None:
    def step(params, batch, /, n, name: str = "sgd", *, scale: float = 1.0):
        loss = lax.pmean((batch[0] @ params["w"] - batch[1]).mean(), "dp")
        return {"w": params["w"] - n * loss}, loss

    call = mapped(step, (P(), (P("dp"), P("dp")), None), (P(), P()))
    assert text_of(lambda: call({"w": ones(4, 2)}, (ones(8, 4), ones(8, 2)), 3)) == (
        "def step(\n"
        '    params: PyTree[Float[Array, "_ _"]],\n'
        '    batch: tuple[Float[Array, "[_/dp] _"], Float[Array, "[_/dp] _"]],\n'
        "    /,\n"
        "    n: Any,\n"
        "    name: str = 'sgd',\n"
        "    *,\n"
        "    scale: float = 1.0,\n"
        ') -> tuple[PyTree[Float[Array, "_ _"]], Float[Array, ""]]: ...\n\n'
        "typed_shard_map(step, mesh=mesh)  # here"
    )


def test_a_tree_of_which_no_hint_says_the_leaves_keeps_its_spec() -> None:
    def gathered(params, x):
        return x @ lax.all_gather(params[0], "dp", axis=0, tiled=True) + params[1]

    call = mapped(gathered, ([P("dp"), P()], P("dp")), P("dp"), check_vma=False)
    assert text_of(lambda: call([ones(4, 2), ones(2)], ones(8, 4))) == (
        'def gathered(params, x: Float[Array, "[_/dp] _"]) -> Float[Array, "[_/dp] _"]: ...\n'
        "# params keeps its spec:\n"
        '#   [0]: Float[Array, "[_/dp] _"]\n'
        '#   [1]: Float[Array, "_"]\n\n'
        "typed_shard_map(gathered, mesh=mesh, check_vma=False, in_specs=in_specs, out_specs=out_specs)  # here"
    )


class Layer:
    def doubled(self, x):
        return x * 2


@pytest.mark.parametrize("f", [partial(jnp.add, 1.0), Layer().doubled], ids=["a partial", "a bound method"])
def test_a_function_without_a_signature_of_its_own_has_its_hints_beside(f: Any) -> None:
    assert text_of(lambda: mapped(f, P("dp"), P("dp"))(ones(8))) == (
        'typed_shard_map(f, mesh=mesh, in_types=(Float[Array, "[_/dp]"],), out_types=Float[Array, "[_/dp]"])  # here'
    )


def test_partial_sums_are_marked() -> None:
    mesh = AbstractMesh((4,), ("dp",), axis_types=(AxisType.Explicit,))
    with jax.sharding.use_abstract_mesh(mesh), audit(hints=True) as report:
        f = jax.shard_map(lambda x: lax.pcast(x.sum(0), "dp", to="unreduced"), out_specs=P(unreduced={"dp"}))
        jax.eval_shape(f, jax.ShapeDtypeStruct((8, 2), jnp.float32, sharding=NamedSharding(mesh, P("dp"))))
    assert report.hints[0].text.startswith(
        'typed_shard_map(f, mesh=mesh, in_types=(Float[Array, "[_/dp] _"],), out_types=Float[Array, "_ +dp"])'
    )


def test_axes_that_are_not_manual_are_left_out() -> None:
    call = mapped(lambda x: x, P("dp"), P("dp"), axis_names={"dp"})
    assert '(f, mesh=mesh, axis_names={"dp"}, in_types=' in text_of(lambda: call(ones(8, 2)))


# What is left out


def test_a_name_that_stands_for_two_sizes_is_left_out() -> None:
    def both(x, y):
        b, d = x.shape
        b, d = y.shape  # noqa: RUF059
        return x.sum(0), y.sum(0)

    text = text_of(lambda: mapped(both, (P("dp"), P("dp")), (P("dp"), P("dp")))(ones(8, 3), ones(8, 5)))
    assert 'x: Float[Array, "[b/dp] _"],' in text and 'y: Float[Array, "[b/dp] _"],' in text


def test_the_function_of_a_library_is_left_alone() -> None:
    assert text_of(lambda: mapped(jnp.sin, P("dp"), P("dp"))(ones(8))) == ""


@jax.tree_util.register_pytree_node_class
class Strict:
    """A class that takes arrays only."""

    def __init__(self, x: Any) -> None:
        self.x = x + 1

    def tree_flatten(self) -> Any:
        return (self.x - 1,), None

    @classmethod
    def tree_unflatten(cls, aux: Any, children: Any) -> Any:
        return cls(*children)


def test_a_class_that_takes_arrays_only_does_not_stop_an_audit() -> None:
    def halved(one):
        return Strict(one.x / 2)

    assert suggested(lambda: mapped(halved, P("dp"), P("dp"))(Strict(ones(8))).x) == []


def test_typed_regions_have_their_hints_already() -> None:
    typed = typed_shard_map(lambda x: x * 2, mesh=MESH, in_specs=P("dp"), out_specs=P("dp"))
    assert suggested(lambda: typed(ones(8))) == []


def test_nothing_is_collected_that_is_not_asked_for() -> None:
    with audit() as report:
        jax.eval_shape(lambda: mapped(lambda x: x, P("dp"), P("dp"))(ones(8)))
    assert report.hints == []


@pytest.mark.parametrize("transform", [jax.grad, jax.vmap, jax.checkpoint], ids=["grad", "vmap", "checkpoint"])
def test_a_call_under_a_transformation_is_what_the_user_wrote(transform: Callable[..., Any]) -> None:
    def doubled(x):
        return x * 2

    call = mapped(doubled, P("dp"), P("dp"))
    f = transform(lambda x: call(x).sum())
    args = ones(3, 8) if transform is jax.vmap else ones(8)
    assert text_of(lambda: f(args)).startswith('def doubled(x: Float[Array, "[_/dp]"]) -> Float[Array, "[_/dp]"]: ...')


def test_a_call_outside_of_jit_is_seen(mesh: jax.sharding.Mesh) -> None:
    def doubled(x):
        return x * 2

    with audit(hints=True) as report:
        jax.block_until_ready(jax.shard_map(doubled, mesh=mesh, in_specs=P("dp"), out_specs=P("dp"))(ones(8)))
    assert [(one.name, one.calls) for one in report.hints] == [("doubled", 1)]


# What is said is right


def typed_by(found: SuggestedHints, body: Callable[..., Any], specs: Any) -> Callable[..., Any]:
    """The function under the hints that were suggested for it."""
    names: dict[str, Any] = {**vars(typedshmap), "Any": Any, "TypedDict": TypedDict, "f": body, "mesh": MESH}
    names |= dict(zip(("in_specs", "out_specs"), specs, strict=True))
    signature, _, call = found.text.rpartition("\n")
    if signature:
        exec(compile(signature, "suggested", "exec", dont_inherit=True), names)
        own = FunctionType(body.__code__, body.__globals__, body.__name__, body.__defaults__, body.__closure__)
        own.__annotations__ = names[body.__name__].__annotations__
        names[body.__name__] = own
    return eval(call, names)


def checked(program: Program) -> None:
    """See that a program is the same under the hints that are suggested for it."""
    with audit(hints=True) as report:
        program.trace(program.vma[0])
    (found,) = report.hints
    typed = typed_by(found, program.body, (program.in_specs, program.out_specs))
    assert_same_program(typed, program.mapped(program.vma[0]), *program.structs)


# What only a spec may state, and under hints `assume`.
STATED = ("collective_matmul", "kernel")


@pytest.mark.sample(3)
@pytest.mark.parametrize(
    "program", [program for program in RIGHT if program.name not in STATED], ids=attrgetter("name")
)
def test_a_program_under_the_hints_that_are_suggested_is_the_same(program: Program) -> None:
    checked(program)


@pytest.mark.parametrize("program", [program for program in RIGHT if program.name in STATED], ids=attrgetter("name"))
def test_what_a_spec_states_of_a_ring_or_a_kernel_is_assumed_under_hints(program: Program) -> None:
    with pytest.raises(VaryingError, match=r"assume\(x, hint\)"):
        checked(program)
