"""What two real processes do together, four virtual CPU devices each; run by test_processes.

Each check prints ``ok NAME``, and an error that all processes must share prints ``error NAME {json}``.
"""

import importlib.util
import json
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Optional

import jax
import numpy as np
from jax.experimental import multihost_utils
from jax.sharding import AxisType, Mesh, NamedSharding
from jax.sharding import PartitionSpec as P

from typedshmap import (
    Array,
    Float,
    Float32,
    Key,
    PyTree,
    TypedShmapError,
    from_callback,
    from_process_local,
    shape_structs,
    shard,
)

EXAMPLE = Path(__file__).parents[2] / "examples" / "multiprocess.py"
X = Float[Array, "[b/dp] d"]
x = np.arange(64, dtype=np.float32).reshape(8, 8)

# Of each mesh the order of the devices; 0 to 3 are the first process's; dp=4, tp=2.
MESHES = {
    "rows": [0, 1, 2, 3, 4, 5, 6, 7],
    "columns": [0, 4, 1, 5, 2, 6, 3, 7],
    "interleaved": [0, 1, 4, 5, 2, 3, 6, 7],
    "reversed": [7, 6, 5, 4, 3, 2, 1, 0],
    "diagonal": [0, 4, 5, 1, 2, 6, 7, 3],
    "uneven": [0, 1, 2, 4, 3, 5, 6, 7],
}
HINTS = ["[b/dp] d", "b [d/tp]", "[b/dp] [d/tp]", "[b/dp,tp] d", "[b/tp,dp] d", "b d", "[b/tp] [d/dp]", "... [d/dp]"]


def example() -> Any:
    """The example's module, whose ``launch`` starts these processes, too."""
    spec = importlib.util.spec_from_file_location("multiprocess", EXAMPLE)
    assert spec is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules["multiprocess"] = module
    spec.loader.exec_module(module)
    return module


def mesh_of(order: list[int], kind: AxisType = AxisType.Auto) -> Mesh:
    devices = sorted(jax.devices(), key=lambda device: device.id)
    return Mesh(np.array([devices[i] for i in order]).reshape(4, 2), ("dp", "tp"), axis_types=(kind,) * 2)


def own_part(whole: np.ndarray, sharding: Any) -> np.ndarray:
    """Of each dim the parts that this process's devices hold, by JAX's own indices."""
    indices = sharding.addressable_devices_indices_map(whole.shape).values()
    for dim, size in enumerate(whole.shape):
        held = {row for index in indices for row in range(size)[index[dim]]}
        whole = np.take(whole, sorted(held), dim)
    return whole


def holds(array: Any, whole: np.ndarray, sharding: Any) -> None:
    assert array.sharding == sharding, (array.sharding, sharding)
    assert array.shape == whole.shape
    for part in array.addressable_shards:
        np.testing.assert_array_equal(part.data, whole[part.index])


@contextmanager
def raises(start: str) -> Iterator[None]:
    """Expect an error of ours whose text begins like this."""
    try:
        yield
    except TypedShmapError as error:
        assert str(error).startswith(start), error
    else:
        raise AssertionError(f"no error: {start}")


def check_parts(own: int) -> None:
    for order in MESHES.values():
        mesh = mesh_of(order)
        for dims in HINTS:
            hint = Float[Array, dims]
            structs = shape_structs(Float[Array, dims.replace("...", "b")], mesh, b=8, d=8)
            holds(from_process_local(own_part(x, structs.sharding), hint, mesh), x, structs.sharding)


def check_as_jax_does(own: int) -> None:
    for name in ("rows", "columns", "reversed"):
        mesh = mesh_of(MESHES[name])
        for dims in HINTS[:6]:
            hint = Float[Array, dims]
            sharding = shape_structs(hint, mesh, b=8, d=8).sharding
            part = own_part(x, sharding)
            ours = from_process_local(part, hint, mesh)
            theirs = multihost_utils.host_local_array_to_global_array(part, mesh, sharding.spec)
            holds(ours, x, sharding)
            holds(theirs, x, theirs.sharding)
            assert ours.sharding.is_equivalent_to(theirs.sharding, 2)


@jax.tree_util.register_dataclass
@dataclass
class Batch:
    tokens: Float[Array, "[batch/dp] seq"]
    mask: Float[Array, "[batch/dp] seq+1"]
    table: Float[Array, "seq [d/tp]"]
    weight: Optional[Float[Array, "batch"]] = None


def batch(rows: int = 4, more: int = 0, seq: int = 3, dtype: Any = np.float32, **other: Any) -> Batch:
    parts = {"mask": np.ones((rows + more, seq + 1)), "table": np.ones((seq, 2)), **other}
    return Batch(np.ones((rows, seq), dtype), **parts)


def check_trees(own: int) -> None:
    mesh = mesh_of(MESHES["rows"])
    got = from_process_local(batch(weight=np.ones(8, np.float32)), Batch, mesh)
    assert jax.tree.map(lambda a: a.shape, got) == Batch((8, 3), (8, 4), (3, 2), (8,))
    explicit = mesh_of(MESHES["rows"], AxisType.Explicit)
    assert str(jax.typeof(from_process_local(batch(), Batch, explicit).tokens)) == "float32[8@dp,3]"
    keys = from_process_local(jax.random.split(jax.random.key(0), 4), Key[Array, "[b/dp]"], mesh)
    assert keys.shape == (8,)
    assert from_process_local(2.0, Float[Array, ""], mesh).shape == ()
    assert from_process_local([np.zeros((2, 0))], list[Float[Array, "[b/dp] e"]], mesh)[0].shape == (4, 0)


def check_unions(own: int) -> None:
    mesh = mesh_of(MESHES["rows"])
    hint = Float[Array, "[4/dp] d"] | Float[Array, "[8/dp] d"] | Float[Array, "8 4 2"] | None
    for data, shape in ((x[:4], (8, 8)), (x[:2], (4, 8)), (np.zeros((8, 4, 2)), (8, 4, 2))):
        assert from_process_local(data, hint, mesh).shape == shape
    assert from_process_local(None, hint, mesh) is None


def check_given_sizes_need_no_other_process(own: int) -> None:
    if own == 0:
        mesh = mesh_of(MESHES["rows"])
        assert from_process_local(batch(), Batch, mesh, batch=8, seq=3, d=2).tokens.shape == (8, 3)
        line = "data.tokens has batch=4, which means batch=8 globally, but batch=16 is given"
        with raises(f"from_process_local on process 0: {line}\n"):
            from_process_local(batch(), Batch, mesh, batch=16, seq=3, d=2)


def check_own_devices_need_no_other_process(own: int) -> None:
    mesh = Mesh(np.array(jax.local_devices()), ("dp",))
    if own == 0:
        assert from_process_local(x, X, mesh).shape == (8, 8)


def check_shard(own: int) -> None:
    for kind in (AxisType.Auto, AxisType.Explicit):
        mesh = mesh_of(MESHES["rows"], kind)
        first = NamedSharding(mesh, P("dp", None))
        placed = shard(x, X, mesh)
        holds(placed, x, first)
        holds(jax.device_put(x, first), x, first)
        holds(shard(jax.numpy.asarray(x), X, mesh), x, first)
        holds(shard(jax.device_put(x, jax.local_devices()[1]), X, mesh), x, first)
        keys = jax.device_put(jax.random.split(jax.random.key(0), 8), jax.local_devices()[1])
        assert shard(keys, Key[Array, "[b/dp]"], mesh).sharding == NamedSharding(mesh, P("dp"))
        with raises("shard: given[1] is not the same in all processes"):
            shard([x, x + own], list[X], mesh)
        for other in (mesh.devices[1:3], mesh.devices[2 * own : 2 * own + 2]):
            with raises("shard: given value is on devices of several processes"):
                shard(placed, X, Mesh(other, ("dp", "tp")))
        holds(shard(placed, Float[Array, "b [d/tp]"], mesh), x, NamedSharding(mesh, P(None, "tp")))
        with jax.set_mesh(mesh):  # where each key is on the devices of both processes
            everywhere = shard(jax.random.split(jax.random.key(0), 8), Key[Array, "[b/dp]"])
        assert everywhere.sharding == NamedSharding(mesh, P("dp"))
        data = np.asarray(jax.random.key_data(jax.random.split(jax.random.key(0), 8)))
        holds(jax.random.key_data(everywhere), data, NamedSharding(mesh, P("dp")))


def check_callback(own: int) -> None:
    mesh = mesh_of(MESHES["rows"])
    asked = []
    hint = Float[Array, "[b/dp] [d/tp]"]
    got = from_callback(lambda index: asked.append(index) or x[index], hint, mesh, b=8, d=8)
    holds(got, x, NamedSharding(mesh, P("dp", "tp")))
    assert {index[0].start for index in asked} == ({0, 2} if own == 0 else {4, 6})
    other = Mesh(mesh.devices[2:], ("dp", "tp"))  # on the second process only
    assert from_callback(lambda index: x[index], hint, other, b=8, d=8).shape == (8, 8)
    with jax.set_mesh(mesh), raises("from_callback: the shard at [:, :] is on devices of several processes"):
        from_callback(lambda index: jax.numpy.ones((8, 8)), Float[Array, "b d"], b=8, d=8)


# What both processes must raise in the same words: by process the data, the hint, the order of the devices, the sizes.
ERRORS: dict[str, Any] = {
    "size": lambda own: (batch(4 - 2 * own), Batch, {}),
    "number": lambda own: (np.ones((2 + 2 * own, 2)), Float[Array, "[_/dp] d"], {}),
    "dtype": lambda own: (batch(dtype=[np.float32, np.float16][own]), Batch, {}),
    "rank": lambda own: (np.ones((2,) * (1 + own)), Float[Array, "[b/dp] ..."], {}),
    "missing": lambda own: (batch(weight=None if own else np.ones(8)), Batch, {}),
    "paths": lambda own: ({"ab"[own]: x}, dict[str, X], {}),
    "own": lambda own: (batch(more=2 * own), Batch, {}),
    "structure": lambda own: ([batch(), {"tokens": x}][own], Batch, {}),
    "annotation": lambda own: (x[: 2 + 2 * own], Float[Array, "[4/dp] d"], {}),
    "parts": lambda own: (x[: 4 - own], X, {}),
    "wrong type": lambda own: (x[:4].astype(int) if own else x[:4], Float32[Array, "[b/dp] d"], {}),
    "given": lambda own: (batch(4 + 2 * own), Batch, {"batch": 8}),
    "global": lambda own: (shard(x, X, mesh_of(MESHES["rows"])), PyTree[Float[Array, "b d"]], {}),
}


def check_errors(own: int) -> None:
    mesh = mesh_of(MESHES["rows"])
    for name, case in ERRORS.items():
        data, hint, sizes = case(own)
        message = None
        try:
            from_process_local(data, hint, mesh, **sizes)
        except TypedShmapError as error:
            message = [type(error).__name__, str(error)]
        print(f"error {name}: {json.dumps(message)}")


def check_a_mesh_of_others(own: int) -> None:
    mesh = Mesh(np.array(jax.devices()[:4]), ("dp",))
    if own == 0:
        return
    with raises("from_process_local: the mesh has no device of process 1, only of process 0"):
        from_process_local(x, X, mesh)


CHECKS = [
    check_parts,
    check_as_jax_does,
    check_trees,
    check_unions,
    check_given_sizes_need_no_other_process,
    check_own_devices_need_no_other_process,
    check_shard,
    check_callback,
    check_a_mesh_of_others,
    check_errors,
]


def main() -> int:
    common = example()
    if len(sys.argv) == 1:
        return common.launch([sys.executable, __file__])
    common.die_with_parent()
    address, own = sys.argv[1], int(sys.argv[2])
    jax.config.update("jax_platforms", "cpu")
    jax.config.update("jax_num_cpu_devices", 4)
    jax.distributed.initialize(address, num_processes=2, process_id=own)
    for check in CHECKS:
        check(own)
        print(f"ok {check.__name__}")
    multihost_utils.sync_global_devices("done")
    return 0


if __name__ == "__main__":
    sys.exit(main())
