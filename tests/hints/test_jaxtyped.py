"""Functions that jaxtyping decorates: around ours, inside of ours, and by themselves."""

import dataclasses

import jax
import jax.numpy as jnp
import jaxtyping
import numpy as np
import pytest
from beartype import beartype
from jaxtyping import TypeCheckError, jaxtyped

from typedshmap import Array, Float, PyTree, ShapeError, sizes, typed, typed_shard_map

jaxtyped_by_beartype = jaxtyped(typechecker=beartype)
Vector = Float[np.ndarray, "n"]


def ones(*shape):
    return np.ones(shape, np.float32)


@jaxtyped_by_beartype
def longer(x: Vector, y: Vector) -> Float[np.ndarray, "n+1"]:
    return ones(len(x) + 1)


@jaxtyped_by_beartype
def repeated(k: int, x: Vector) -> Float[np.ndarray, "{k}*n"]:
    return ones(k * len(x))


@jaxtyped_by_beartype
def same(x: PyTree[Float[np.ndarray, "?n"], "S"], y: PyTree[Float[np.ndarray, "?n"], "S"]) -> None:
    return None


@jaxtyped_by_beartype
@dataclasses.dataclass
class Pair:
    x: Vector
    y: Vector


@pytest.mark.parametrize(
    ("function", "right", "wrong"),
    [
        (longer, (ones(2), ones(2)), (ones(2), ones(3))),
        (repeated, (2, ones(3)), ("2", ones(3))),
        (same, ([ones(1), ones(2)],) * 2, ([ones(1), ones(2)], [ones(1), ones(3)])),
        (same, ([ones(1), ones(2)],) * 2, ([ones(1), ones(2)], [ones(1)])),
        (Pair, (ones(2), ones(2)), (ones(2), ones(3))),
    ],
)
def test_a_function_of_jaxtyping_has_names_of_its_own(function, right, wrong):
    function(*right)
    function(*right)
    with pytest.raises(TypeCheckError):
        function(*wrong)


def test_names_of_nested_functions_of_both_libraries_do_not_meet():
    @typed
    def innermost(x: Vector):
        assert isinstance(ones(9), Vector)
        return sizes()

    @typed
    def outer(x: Vector):
        longer(ones(5), ones(5))
        with jaxtyped("context"):
            assert isinstance(ones(7), Vector)
            assert not isinstance(ones(8), Vector)
            assert innermost(ones(9)) == {"n": 9}
            assert not isinstance(ones(9), Vector)
        assert isinstance(ones(2), Vector)
        return sizes()

    assert outer(ones(2)) == {"n": 2}
    assert isinstance(ones(3), Vector)


SHARDED = Float[Array, "[b/dp] d"]


@jaxtyped_by_beartype
def halved(x: SHARDED) -> SHARDED:
    return x / 2


def projected(x: SHARDED, w: Float[Array, "d f"]) -> Float[Array, "[b/dp] f"]:
    return halved(halved(x) @ w)


@pytest.mark.parametrize("place", ["around", "inside", "absent"])
@pytest.mark.parametrize("check_vma", [True, False])
def test_a_program_may_be_decorated_by_jaxtyping_too(mesh, place, check_vma):
    program = jaxtyped_by_beartype(projected) if place == "inside" else projected
    program = typed_shard_map(program, mesh=mesh, check_vma=check_vma)
    program = jaxtyped_by_beartype(program) if place == "around" else program
    out = jax.block_until_ready(program(jnp.ones((8, 4)), jnp.ones((4, 6))))
    np.testing.assert_array_equal(out, np.full((8, 6), 1.0))
    with pytest.raises(ShapeError, match=r"^projected: argument 'w' has d=5, but argument 'x' has d=4\n"):
        program(jnp.ones((8, 4)), jnp.ones((5, 6)))


HOOKED = """
from collections.abc import Iterator
import numpy as np
from typedshmap import Array, Float, size, typed, typed_shard_map

Vector = Float[np.ndarray, "n"]

def plain(x: Vector, y: Vector):
    return x

def halved(x: Float[Array, "[b/dp] d"]) -> Float[Array, "[b/dp] d"]:
    return x / 2

@typed_shard_map
def projected(x: Float[Array, "[b/dp] d"], w: Float[Array, "d f"]) -> Float[Array, "[b/dp] f"]:
    return halved(halved(x) @ w)

@typed
def helper(x: Vector):
    return plain(np.ones(7), np.ones(7))

@typed
def steps(x: Vector) -> Iterator[Vector]:
    yield size("n") * x
"""


def test_under_the_import_hook_of_jaxtyping_programs_are_right(mesh, tmp_path, monkeypatch):
    (tmp_path / "hooked_by_jaxtyping.py").write_text(HOOKED, encoding="utf-8")
    monkeypatch.syspath_prepend(tmp_path)
    with jaxtyping.install_import_hook("hooked_by_jaxtyping", "beartype.beartype"):
        import hooked_by_jaxtyping as hooked
    with jax.set_mesh(mesh):
        out = jax.block_until_ready(hooked.projected(jnp.ones((8, 4)), jnp.ones((4, 6))))
    np.testing.assert_array_equal(out, np.full((8, 6), 1.0))
    assert hooked.helper(ones(3)).shape == (7,)
    assert next(hooked.steps(ones(3))).tolist() == [3.0] * 3
    hooked.plain(ones(2), ones(2))
    with pytest.raises(TypeCheckError):
        hooked.plain(ones(2), ones(3))
