"""The reader of compiled text: bytes by ring formulas, in every form that XLA writes, or a refusal."""

from fractions import Fraction
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import Mesh
from jax.sharding import PartitionSpec as P

from typedshmap import _jax

HEADER = "HloModule jit_f, is_scheduled=true, num_partitions=8\n"


LINES = [
    ("%g = f32[16,32]{1,0} all-gather(%p), replica_groups={{0,1},{2,3},{4,5},{6,7}}, dimensions={0}",
     2, 1024, 2048, 1024),
    ("%g = bf16[16]{0} all-gather(%p), replica_groups=[2,4]<=[4,2]T(1,0), dimensions={0}", 4, 8, 32, 24),
    ("%g = (f32[4]{0}, f32[16]{0}) all-gather-start(%p), replica_groups=[2,4]<=[8], dimensions={0}", 4, 16, 64, 48),
    ("ROOT %r = f32[8]{0} all-reduce(%p), replica_groups={}, to_apply=%add", 8, 32, 32, 56),
    ("%r = (f32[8]{0}, s8[4]{0}) all-reduce(%p, %q), replica_groups={{0,1},{2,3}}, to_apply=%add", 2, 36, 36, 36),
    ("%r = f32[8]{0} all-reduce-start(%p), replica_groups={{0,1},{2,3}}, to_apply=%add", 2, 32, 32, 32),
    ("%s = f32[2]{0} reduce-scatter(%p), replica_groups=mesh['a'=2,'b'=4] {'b'}, dimensions={0}", 4, 32, 8, 24),
    ("%t = (f32[1,4]{1,0}, /*index=1*/f32[1,4]{1,0}) all-to-all(%p, %q), replica_groups={{0,1},{2,3}}", 2, 32, 32, 16),
    ("%t = pred[8]{0} all-to-all(%p), replica_groups=mesh['a'=2,'b'=4], device_ids=([2,4]T(1,0)) {'b'}", 4, 8, 8, 6),
    ("%t = c64[8]{0} all-to-all(%p), replica_groups=mesh['a'=2,'b'=4] {'a', 'b':(1)2}", 4, 64, 64, 48),
    ("%c = f8e4m3fn[8]{0} collective-permute(%p), source_target_pairs={{0,1},{1,0}}", 2, 8, 8, 8),
    ("%c = f32[8]{0} collective-permute(%p), source_target_pairs={{0,0},{1,1}}", 2, 32, 32, 0),
    ("%c = (f32[8]{0}, f32[8]{0}, u32[], u32[]) collective-permute-start(%p), source_target_pairs={{0,1}}",
     1, 32, 32, 32),
]  # fmt: skip


@pytest.mark.parametrize("line, group, bytes_in, bytes_out, sent", LINES)
def test_a_collective_is_read(line: str, group: int, bytes_in: int, bytes_out: int, sent: int, reader: Any) -> None:
    (found,) = reader.collectives(f'{HEADER}  {line}, metadata={{op_name="x"}}')
    assert (found.group_size, found.bytes_in, found.bytes_out, found.sent) == (group, bytes_in, bytes_out, sent)


GROUPS = {
    "{}": "01234567",
    "{{0,1},{2,3},{5,4},{6,7}}": "01 23 45 67",
    "[2,4]<=[8]": "0123 4567",
    "[2,4]<=[4,2]T(1,0)": "0246 1357",
    "mesh['a'=4,'b'=2] {'a'}": "0246 1357",
    "mesh['a'=2,'b'=4] {'a','b'}": "01234567",
    "mesh['a'=2,'b'=4], device_ids=([4,2]T(1,0)) {'b'}": "0246 1357",
    "mesh['a'=2,'b'=4] {'b':(1)2}": "02 13 46 57",
    "mesh['a'=2,'b'=4] {'b':(2)2}": "01 23 45 67",
    "mesh['a'=2,'b'=4] {'a', 'b':(2)2}": "0145 2367",
}


@pytest.mark.parametrize(("text", "groups"), GROUPS.items(), ids=GROUPS)
def test_the_devices_of_a_group_are_read(text: str, groups: str, reader: Any) -> None:
    found = reader.device_groups(text, 8)
    assert " ".join("".join(map(str, group)) for group in found) == groups


def test_lines_that_are_no_collectives_are_passed_over(reader: Any) -> None:
    done = "  %d = f32[16]{0} all-gather-done(%g)\n  %e = f32[4]{0} get-tuple-element(%all-to-all.1), index=0\n"
    assert reader.collectives(f"{HEADER}{done}  %f = f32[4]{{0}} fusion(%all-reduce), kind=kLoop") == []


@pytest.mark.parametrize(
    "line",
    [
        "%g = f32[16]{0} all-gather(%p), replica_groups=@groups, dimensions={0}",
        "%g = f32[16]{0} all-gather(%p), replica_groups={{0,1},{2,3,4}}, dimensions={0}",
        "%g = f32[16]{0} all-gather(%p), dimensions={0}",
        "%g = f32[16]{0} all-gather(%p), replica_groups=mesh['a'=2] {a}, dimensions={0}",
        "%c = f32[16]{0} collective-permute(%p)",
        "%b = f32[16]{0} collective-broadcast(%p), replica_groups={{0,1}}",
        "%b = f32[16]{0} ragged-all-to-all(%p), replica_groups={{0,1}}",
    ],
)
def test_an_unknown_form_is_refused(line: str, reader: Any) -> None:
    with pytest.raises(reader.UnknownForm):
        reader.collectives(f"{HEADER}  {line}")


def test_the_bytes_of_a_program_are_added_up(reader: Any) -> None:
    assert reader.sent(HEADER + "\n".join(line for line, *_ in LINES[:2])) == 1024 + 24


@pytest.mark.parametrize(
    "f, out, sent",
    [
        (lambda x: jax.lax.psum(x, "dp"), P(None, None), Fraction(2 * 3, 4) * 256),
        (lambda x: jax.lax.psum_scatter(x, "dp", tiled=True), P("dp", None), Fraction(3, 4) * 256),
        (lambda x: _jax.casts.all_gather(x, ("dp",), 0, "invarying", has_vma=True), P(None, None), 3 * 256),
        (lambda x: jax.lax.all_to_all(x, "dp", 1, 0, tiled=True), P(None, "dp"), Fraction(3, 4) * 256),
        (lambda x: jax.lax.ppermute(x, "dp", [(i, (i + 1) % 4) for i in range(4)]), P("dp", None), 256),
    ],
)
def test_the_bytes_of_what_jax_compiles_are_those_of_the_formula(
    f: Any, out: P, sent: Any, mesh: Mesh, reader: Any
) -> None:
    program = jax.jit(jax.shard_map(f, mesh=mesh, in_specs=P("dp", None), out_specs=out))
    compiled = program.lower(jax.ShapeDtypeStruct((32, 8), jnp.float32)).compile()
    assert reader.sent(compiled.as_text()) == sent


def test_no_collective_is_found_where_there_is_none(mesh: Mesh, reader: Any) -> None:
    program = jax.jit(jax.shard_map(lambda x: -x, mesh=mesh, in_specs=P("dp"), out_specs=P("dp")))
    assert reader.collectives(program.lower(np.ones(8)).compile().as_text()) == []
