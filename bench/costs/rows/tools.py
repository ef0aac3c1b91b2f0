"""What the tools cost: `explain`, and `assert_mesh_invariant`."""

from functools import cache, partial
from typing import Any

import jax
import programs
import quickstart_step
from jax.sharding import Mesh

from typedshmap import explain, typed_shard_map
from typedshmap.testing import assert_mesh_invariant, inputs

from ..benchmark import Benchmark, Result, benchmark, counted, of_counts, of_times, over
from ..meshes import make_mesh
from ..timing import WALL, Call, Effort, take_turns
from ..tracing import trace

GROUP = "tools"
MLP = {"b": 8, "m": 16, "ff": 32}
QUICKSTART = {"batch": 8, "seq": 16, "vocab": 64, "model": 32, "heads": 4, "head": 8, "ff": 64, "layers": 2}


def _explained(f: Any, args: tuple[Any, ...], effort: Effort) -> Result:
    explained = partial(explain, f, *args, mesh=make_mesh(4, 2))
    return of_times(take_turns(explained, partial(trace, f, args), effort))


@benchmark(GROUP, "explain, small mlp", over(10), "its trace")
def explained_mlp(effort: Effort) -> Result:
    """All that `explain` reports of a function of three operations, its gradient included, against one trace of it."""
    pair = programs.PAIRS["forward"](make_mesh(4, 2))
    return _explained(pair.typed, pair.args, effort)


@benchmark(GROUP, "explain, quickstart's step", over(3), "its trace")
def explained_quickstart(effort: Effort) -> Result:
    """The same of a training step, which has its gradient inside."""
    pair = programs.quickstart(make_mesh(4, 2))
    return _explained(pair.typed, pair.args, effort)


def _on_each(f: Any, meshes: tuple[Mesh, ...], sizes: dict[str, int]) -> Call:
    """Compile and run a function on every mesh, with arguments that its hints made."""
    made = {mesh: inputs(f, mesh=mesh, seed=0, **sizes) for mesh in meshes}

    def run() -> Any:
        for mesh, given in made.items():
            with jax.set_mesh(mesh):
                jax.block_until_ready(jax.jit(lambda *args: f(*args))(*given.args))

    return run


def _invariant(f: Any, sizes: dict[str, int], effort: Effort) -> Result:
    one, eight = make_mesh(1, 1), make_mesh(4, 2)
    ours = partial(assert_mesh_invariant, f, [eight], seed=0, **sizes)
    return of_times(take_turns(lambda: str(ours()), _on_each(f, (one, eight), sizes), effort, WALL))


@benchmark(GROUP, "assert_mesh_invariant, small mlp", over(4), "compiled, run on both meshes")
def invariant_mlp(effort: Effort) -> Result:
    """Three trials on one device and on dp=4, tp=2, with what moves in the last place, against one run on each."""
    return _invariant(typed_shard_map(programs.mlp), MLP, effort)


@cache
def _quickstart() -> Any:
    return quickstart_step.load("quickstart_for_tools")


@benchmark(
    GROUP, "assert_mesh_invariant, quickstart's gradients", over(2), "compiled, run on both meshes", is_slow=True
)
def invariant_quickstart(effort: Effort) -> Result:
    """The same of the quickstart's loss and gradients."""
    return _invariant(_quickstart().loss_and_gradients, QUICKSTART, effort)


def _compilations(run: Call) -> int:
    """How many programs XLA compiles in a call."""
    found: list[str] = []

    def hear(event: str, seconds: float, **_: Any) -> None:
        if event.endswith("backend_compile_duration"):
            found.append(event)

    jax.monitoring.register_event_duration_secs_listener(hear)
    try:
        run()
    finally:
        jax.monitoring.unregister_event_duration_listener(hear)
    return len(found)


@counted(GROUP, "assert_mesh_invariant, quickstart's loss, programs compiled", "meshes")
def invariant_in_programs(effort: Effort) -> Result:
    """Three trials of given sizes on one device and on dp=4, tp=2: each mesh's program is compiled once."""
    meshes = (make_mesh(1, 1), make_mesh(4, 2))
    compiled = _compilations(partial(assert_mesh_invariant, _quickstart().loss, meshes, seed=0, **QUICKSTART))
    return of_counts(compiled, len(meshes))


ROWS: tuple[Benchmark, ...] = (
    explained_mlp,
    explained_quickstart,
    invariant_mlp,
    invariant_quickstart,
    invariant_in_programs,
)
