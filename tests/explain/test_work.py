"""FLOPs and bytes per line, and the time on a kind of device: against hand calculations."""

from __future__ import annotations

import itertools
import re
from math import log2
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax
from jax.experimental import mesh_utils, roofline
from jax.sharding import AbstractMesh, AxisType
from jax.sharding import PartitionSpec as P

from typedshmap import (
    Array,
    BFloat16,
    Float32,
    MeshAxisError,
    StructureError,
    all_gather,
    explain,
    typed_shard_map,
)
from typedshmap._jax.mesh import parse_mesh
from typedshmap.tools.explain import Hardware, Work
from typedshmap.tools.explain.hardware import read_hardware
from typedshmap.tools.explain.links import place_on_torus

# The programs are about other things, and do not all mean something.
pytestmark = pytest.mark.filterwarnings("ignore::typedshmap.SuspectWarning")

MESH = AbstractMesh((4,), ("dp",))


def work_of(body, grad=False) -> Work:
    @typed_shard_map(check_vma=False)
    def f(x: Float32[Array, "[a/dp] b"]) -> Float32[Array, "[a/dp] b"]:
        return body(x)

    return explain(f, mesh=MESH, grad=grad, a=64, b=32).work


def convolved(x):
    image = x[None, None]  # one of 16 x 32 with a window of 3 x 3, and of its edges two thirds
    return lax.conv_general_dilated(image, jnp.ones((1, 1, 3, 3)), (1, 1), "SAME")[0, 0]


def scanned(x):
    return lax.scan(lambda c, _: (c @ jnp.ones((32, 32)), None), x, None, length=7)[0]


PRODUCT = 2 * 16 * 32 * 32
FLOPS = {
    "a product": (lambda x: x @ jnp.ones((32, 32)), {"products": PRODUCT}),
    "a product with batch dims": (
        lambda x: jnp.einsum("abc,acd->abd", x.reshape(4, 4, 32), jnp.ones((4, 32, 32))).reshape(16, 32),
        {"products": PRODUCT}),
    "in a loop": (scanned, {"products": 7 * PRODUCT}),
    "in a branch": (
        lambda x: lax.cond(x[0, 0] > 0, lambda x: x @ jnp.ones((32, 32)), lambda x: x, x), {"products": PRODUCT}),
    "a convolution": (convolved, {"products": 2 * (3 * 16 - 2) * (3 * 32 - 2)}),
    "a transform": (lambda x: jnp.fft.fft(x).real, {"transforms": 5 * 16 * 32 * log2(32)}),
    "an elementwise operation": (lambda x: x * 2 + 1, {"elementwise": 2 * 16 * 32}),
    "a sum": (lambda x: x.sum(1, keepdims=True) + x, {"reductions": 16 * 32, "elementwise": 16 * 32}),
    "what moves is none": (lambda x: x.T.astype(jnp.bfloat16).astype(x.dtype).T[:, ::-1], {}),
}  # fmt: skip


@pytest.mark.parametrize("body, flops", FLOPS.values(), ids=FLOPS)
def test_operations_are_counted_by_kind(body, flops):
    assert dict(work_of(body).kinds) == flops


def test_a_gradient_has_two_products_more_for_each():
    weight = jnp.ones((32, 32))
    forward, both = (work_of(lambda x: jnp.tanh(x @ weight) @ weight, grad=grad) for grad in (False, True))
    assert (forward.kinds["products"], both.kinds["products"]) == (2 * PRODUCT, 4 * PRODUCT)  # of x alone


def test_bytes_are_those_of_what_is_read_and_written_by_line():
    shard = 16 * 32 * 4
    work = work_of(lambda x: jnp.sin(x) + 1)
    assert (work.bytes, [line.bytes for line in work.lines]) == (2 * shard, [2 * shard])
    (line,) = work.lines
    assert line.place.startswith("test_work.py:")
    assert line.intensity == work.intensity == 2 * 16 * 32 / (2 * shard)
    assert work_of(scanned).bytes >= 7 * 3 * shard


def test_products_and_what_is_sent_are_those_of_the_roofline_of_jax():
    def body(x, up, down):
        return lax.psum(jnp.tanh(x @ lax.all_gather(up, "dp", axis=0, tiled=True)) @ down, "tp")

    @typed_shard_map(check_vma=False)
    def f(
        x: Float32[Array, "[a/dp] b"], up: Float32[Array, "[b/dp] [c/tp]"], down: Float32[Array, "[c/tp] b"]
    ) -> Float32[Array, "[a/dp] b"]:
        return body(x, up, down)

    mesh = AbstractMesh((4, 2), ("dp", "tp"), axis_types=(AxisType.Auto,) * 2)
    specs = (P("dp", None), P("dp", "tp"), P("tp", None))
    args = [jax.ShapeDtypeStruct(shape, jnp.float32) for shape in ((1024, 256), (256, 1024), (1024, 256))]
    _, roof = roofline.roofline(body, mesh=mesh, in_specs=specs, out_specs=P("dp", None))(*args)
    found = explain(f, *args, mesh=mesh, grad=False)
    assert found.work.kinds["products"] == roof.flops
    assert {total.axes[0]: total.wire for total in found.totals} == roof.ici_bytes


# The formulas of "How to Scale Your Model" (2025): per layer of a batch of tokens B, model D, ff F, in bfloat16; those
# of other layers are in test_choices.
B, D, F = 2**19, 8192, 32768
CHIP = Hardware("chip", {"bf16": 459e12}, 96e9, 2765e9, link=180e9)


@typed_shard_map
def tensor_parallel(
    x: BFloat16[Array, "[batch/dp] [model/tp]"],
    up: BFloat16[Array, "model [ff/tp]"],
    down: BFloat16[Array, "[ff/tp] model"],
) -> BFloat16[Array, "[batch/dp] [model/tp]"]:
    x = all_gather(x, "[b/dp] [m/tp] -> [b/dp] m")
    return lax.psum_scatter(x @ up @ down, "tp", scatter_dimension=1, tiled=True)


@typed_shard_map
def fsdp(
    x: BFloat16[Array, "[batch/dp] model"], up: BFloat16[Array, "[model/dp] ff"], down: BFloat16[Array, "[ff/dp] model"]
) -> BFloat16[Array, "[batch/dp] model"]:
    up, down = all_gather(up, "[m/dp] f -> m f ~dp"), all_gather(down, "[f/dp] m -> f m ~dp")
    return x @ up @ down


def test_a_tensor_parallel_layer_takes_what_the_scaling_book_says():
    time = explain(tensor_parallel, mesh="dp=64,tp=8", hardware=CHIP, grad=False, batch=B, model=D, ff=F).time
    assert time.compute == pytest.approx(4 * B * D * F / (512 * 459e12))
    # An all-gather and a reduce-scatter of B D entries over tp, but for the part that is there: 2 * 2 B D / W.
    assert time.communicate == {"tp": pytest.approx(2 * 2 * B / 64 * D / 180e9 * 7 / 8)}
    assert (time.bound, time.overlapped) == ("compute", time.compute)
    assert time.serial >= time.compute + time.communicate["tp"]
    wider = explain(tensor_parallel, mesh="dp=8,tp=64", hardware=CHIP, grad=False, batch=B, model=D, ff=F).time
    assert wider.bound == "tp"  # beyond F / (C / W), which is 12.9
    assert wider.text.startswith("bound by communication over 'tp': ")
    assert wider.utilization == pytest.approx(wider.compute / wider.communicate["tp"])


def test_a_ring_over_several_axes_sends_over_the_fastest_first():
    @typed_shard_map
    def f(x: Float32[Array, "[a/dp,tp]"]) -> Float32[Array, "a"]:
        return all_gather(x, "[a/dp,tp] -> a")

    chip = Hardware("chip", {"f32": 1}, 1e15, 1e15, {"dp": 50.0, "tp": 400.0})
    time = explain(f, mesh="dp=4,tp=8", hardware=chip, grad=False, a=320).time
    # Of 1,280 bytes 7/8 come over tp, of the eighth that is left three quarters over dp.
    assert time.communicate == {"tp": pytest.approx(1120 / 400), "dp": pytest.approx(120 / 50)}


def test_a_dtype_runs_as_the_next_wider_one_that_is_known():
    chip = Hardware("chip", {"i8": 4, "bf16": 2, "f32": 1}, 1, 1)
    assert [chip.rate(dtype) for dtype in ("i8", "i4", "f8_e4m3fn", "bf16", "f32", "f64")] == [4, 4, 4, 2, 1, 1]


def test_axes_within_a_domain_lie_on_its_links_and_others_on_the_network():
    rates = explain(fsdp, mesh="pp=2,dp=4,tp=2", hardware="h100", grad=False).bandwidth
    assert rates == {"pp": 50e9, "dp": 450e9, "tp": 450e9}
    given = explain(fsdp, mesh="dp=16", hardware="h100", bandwidth={"dp": "25GB/s"}, grad=False).bandwidth
    assert given == {"dp": 25e9}


@pytest.mark.parametrize("name", ["v5e", "v5p", "v6e", "v7x", "h100", "b200", "V5P"])
def test_kinds_of_devices_are_known_by_name(name):
    found = explain(fsdp, mesh="dp=4", hardware=name, grad=False, batch=8, model=8, ff=8)
    assert found.fits and found.time.hardware == name.lower()
    assert f"on {name.lower()}: fits in " in str(found)


def test_what_does_not_fit_is_said():
    found = explain(fsdp, mesh="dp=4", hardware=Hardware("small", {"bf16": 1}, 10, 1, {"dp": 1}), grad=False)
    assert not found.fits
    assert "on small: does not fit in 10 B; " in str(found)


@pytest.mark.parametrize(
    ("figures", "message"),
    [
        ({"flops": {}}, "Hardware: flops= is empty"),
        ({"flops": 3e12}, "Hardware: flops= expects a dict, got 3000000000000.0"),
        ({"flops": {"bf16": -1}}, "Hardware: flops['bf16'] is -1, not a positive number"),
        ({"memory": 0}, "Hardware: memory is 0, not a positive number"),
        ({"bandwidth": "1TB/s"}, "Hardware: bandwidth is '1TB/s', not a positive number"),
        ({"links": {"dp": float("nan")}}, "Hardware: links['dp'] is nan, not a positive number"),
    ],
)
def test_figures_are_positive_numbers(figures, message):
    with pytest.raises(StructureError) as raised:
        Hardware(**{"name": "chip", "flops": {"bf16": 1}, "memory": 1, "bandwidth": 1, **figures})
    assert str(raised.value).splitlines()[0] == message


@pytest.mark.parametrize(
    ("hardware", "error", "message"),
    [
        ("v5pp", StructureError, "explain: hardware= is 'v5pp'\n\nHint: did you mean 'v5p'? there are v5e, v5p, v6e, "
         "v7x, h100, b200; for others pass a Hardware(name, flops=, memory=, bandwidth=, links=)"),
        (5, StructureError, "explain: hardware= is 5\n\nHint: there are v5e, v5p, v6e, v7x, h100, b200; for others "
         "pass a Hardware(name, flops=, memory=, bandwidth=, links=)"),
        (Hardware("chip", {"bf16": 1}, 1, 1, {"tp": 1}), MeshAxisError,
         "hardware 'chip' has a link over mesh axis 'tp', which the mesh (dp=4) does not have"),
    ],
)  # fmt: skip
def test_unknown_hardware_is_refused(hardware, error, message):
    with pytest.raises(error) as raised:
        explain(fsdp, mesh="dp=4", hardware=hardware, grad=False)
    assert str(raised.value) == message


def test_a_collective_over_an_axis_without_a_link_is_refused():
    with pytest.raises(MeshAxisError, match="hardware 'chip' has no link over mesh axis 'dp'"):
        explain(fsdp, mesh="dp=4", hardware=Hardware("chip", {"bf16": 1}, 1, 1), grad=False)


def test_meshes_are_compared_by_time():
    meshes = ["dp=64,tp=8", "dp=8,tp=64"]
    found = explain(tensor_parallel, meshes=meshes, hardware=CHIP, grad=False, batch=B, model=D, ff=F)
    head, *rows = str(found).splitlines()[2:5]
    assert " ".join(head.split()).endswith("on the wire at least bound seconds")
    assert [row.split()[-3] for row in rows] == ["compute", "tp"]


class Chip(NamedTuple):
    """A device as `mesh_utils` reads it."""

    coords: tuple[int, int, int]
    id: int
    platform: str = "tpu"
    device_kind: str = "TPU v4"
    core_on_chip: int = 0
    process_index: int = 0
    slice_index: int = 0


@pytest.mark.parametrize(
    ("shape", "sizes"),
    [
        ((4, 4, 4), (16, 4)),
        ((4, 4, 4), (2, 4, 8)),
        ((4, 4, 8), (8, 16)),
        ((2, 4, 4), (4, 8)),
        ((4, 8), (2, 16)),
        ((4, 4, 12), (3, 8, 8)),
        ((8, 8), (4, 4, 4)),
    ],
)
def test_mesh_axes_lie_on_a_torus_as_jax_places_them(shape, sizes):
    places = itertools.product(*map(range, (*shape, 1)[:3]))
    devices = [Chip(coords, at) for at, coords in enumerate(places)]
    mesh = mesh_utils.create_device_mesh(sizes, devices, allow_split_physical_axes=True)
    for axis, parts in enumerate(place_on_torus(sizes, shape)):
        line = np.moveaxis(mesh, axis, 0).reshape(sizes[axis], -1)[:, 0]
        assert parts == tuple(len({device.coords[dim] for device in line}) for dim in range(len(shape)))


@pytest.mark.parametrize(
    ("hardware", "mesh", "gigabytes"),
    [
        ("v5p", "dp=2048", {"dp": 600}),  # three rings at once
        ("v5p", "dp=256,tp=8", {"dp": 400, "tp": 200}),  # tp on the dim of 8, dp on both of 16
        ("v5p:16x16x8", "dp=16,tp=128", {"dp": 200, "tp": 400}),
        ("v5p", "dp=512,tp=4", {"dp": 450, "tp": 100}),  # tp in a line of 4; dp skips four chips there
        ("v5p", "dp=8,tp=4", {"dp": 200, "tp": 100}),  # less than a cube has no rings: 2 x 4 x 4
        ("v5e", "dp=16,tp=16", {"dp": 100, "tp": 100}),
        ("v5e", "dp=8,tp=16", {"dp": 50, "tp": 100}),  # only 16 chips are a ring
        ("v5e", "dp=64,tp=32", {"dp": 25, "tp": 150}),  # eight slices, each sends with 8 of the 64
        ("v7x", "dp=256,tp=2", {"dp": 300, "tp": 600}),  # two devices of a chip
        ("h100", "dp=4,tp=16", {"dp": 50, "tp": 400}),  # two nodes, with 8 interfaces each
        ("h100", "pp=2,dp=4,tp=2", {"pp": 50, "dp": 450, "tp": 450}),
    ],
)
def test_what_a_device_sends_over_a_mesh_axis(hardware, mesh, gigabytes):
    sizes = tuple(parse_mesh(mesh).items())
    assert read_hardware("test", hardware).rates(sizes) == {axis: 1e9 * rate for axis, rate in gigabytes.items()}


@pytest.mark.parametrize(
    ("hardware", "message"),
    [
        ("v5p:8x16", "hardware 'v5p' has 3 sizes, as in 8x16x16; got '8x16'"),
        ("v5e:0x4", "hardware 'v5e' has slices of 1 to 256 devices; got '0x4'"),
        ("v5e:16x32", "hardware 'v5e' has slices of 1 to 256 devices; got '16x32'"),
        ("h100:8", "hardware 'h100' has no topology; got '8'"),
    ],
)
def test_what_is_no_topology_is_refused(hardware, message):
    with pytest.raises(StructureError, match=f"^{re.escape(message)}$"):
        read_hardware("test", hardware)


def test_a_mesh_fills_the_topology():
    with pytest.raises(MeshAxisError, match=r"^hardware 'v5e:4x4' is a topology of 16 devices, and the mesh \(dp=4\)"):
        explain(fsdp, mesh="dp=4", hardware="v5e:4x4", grad=False)
