"""A 3-D Fourier transform of a field that no device holds, and Poisson's equation solved with it.

The mesh has two axes, and each shard holds a pencil: two dims of the field are sharded, the third is
not. Along that one it transforms. Then an `all_to_all` over one mesh axis makes the next dim unsharded,
and shards the one that is done; after three transforms and two such transposes the field is
transformed, and sharded in the opposite order. The inverse goes the way back, so that a solver needs
no further transpose. Every shard sends what it holds once for each transpose, and never holds more.

    python examples/fft.py

It prints the pencils, compares forward and inverse transform with NumPy, solves Poisson's equation
for some charges, and shows what is sent for a field of 4096 x 4096 x 4096 on three meshes. The exit
code is 1 if anything differs.
"""

import os

# jax reads both when it starts.
os.environ["JAX_PLATFORMS"] = "cpu"
os.environ["XLA_FLAGS"] = f"{os.environ.get('XLA_FLAGS', '')} --xla_force_host_platform_device_count=8"

import sys

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import AxisType

from typedshmap import (
    Array,
    Complex64,
    Float32,
    all_gather,
    all_to_all,
    explain,
    reshard,
    size,
    typed,
    typed_jit,
    typed_shard_map,
)

SHAPE = {"a": 16, "b": 32, "c": 24}

# Float32 sums over 12,288 points, taken as log2(12288) = 14 rounds of additions: some 14 * 6e-8 of the largest.
TOLERANCE = 1e-5

Field = Complex64[Array, "a [b/y] [c/x]"]
Spectrum = Complex64[Array, "[a/y] [b/x] c"]


@typed
def transform(field: Field) -> Spectrum:
    field = jnp.fft.fft(field, axis=0)
    field = all_to_all(field, "a [b/y] [c/x] -> [a/y] b [c/x]")
    field = jnp.fft.fft(field, axis=1)
    field = all_to_all(field, "[a/y] b [c/x] -> [a/y] [b/x] c")
    return jnp.fft.fft(field, axis=2)


@typed
def inverse(spectrum: Spectrum) -> Field:
    spectrum = jnp.fft.ifft(spectrum, axis=2)
    spectrum = all_to_all(spectrum, "[a/y] [b/x] c -> [a/y] b [c/x]")
    spectrum = jnp.fft.ifft(spectrum, axis=1)
    spectrum = all_to_all(spectrum, "[a/y] b [c/x] -> a [b/y] [c/x]")
    return jnp.fft.ifft(spectrum, axis=0)


def wave_numbers(n: int) -> Array:
    return 2 * jnp.pi * jnp.fft.fftfreq(n, 1 / n)


@typed
def without_laplacian(spectrum: Spectrum) -> Spectrum:
    """Divide by the eigenvalues of the negative Laplacian on a unit torus; the mean, where that is 0, becomes 0."""
    a = reshard(wave_numbers(size("a")), "a -> [a/y]")  # each shard takes its part of what all know
    b = reshard(wave_numbers(size("b")), "b -> [b/x]")
    c = wave_numbers(size("c"))
    eigenvalues = a[:, None, None] ** 2 + b[:, None] ** 2 + c**2
    return jnp.where(eigenvalues > 0, spectrum / jnp.maximum(eigenvalues, 1), 0)


@typed_jit
@typed_shard_map
def forward(field: Field) -> Spectrum:
    return transform(field)


@typed_jit
@typed_shard_map
def backward(spectrum: Spectrum) -> Field:
    return inverse(spectrum)


@typed_jit
@typed_shard_map
def solve(charge: Float32[Array, "a [b/y] [c/x]"]) -> Float32[Array, "a [b/y] [c/x]"]:
    """The potential, by Poisson's equation."""
    return inverse(without_laplacian(transform(charge.astype(jnp.complex64)))).real


@typed_shard_map
def gathered(field: Field) -> Complex64[Array, "a b c"]:
    """The alternative: the field gathered on every device, to be transformed there."""
    return all_gather(field, "a [b/y] [c/x] -> a b c")


def plain_solve(charge: np.ndarray) -> np.ndarray:
    numbers = np.meshgrid(*(2 * np.pi * np.fft.fftfreq(n, 1 / n) for n in charge.shape), indexing="ij")
    eigenvalues = sum(number**2 for number in numbers)
    eigenvalues[0, 0, 0] = np.inf
    return np.fft.ifftn(np.fft.fftn(charge) / eigenvalues).real


def charges(rng: np.random.Generator) -> np.ndarray:
    """A few of either sign, with a sum of zero."""
    charge = np.zeros(tuple(SHAPE.values()), np.float32)
    for sign in (1, -1) * 3:
        charge[tuple(rng.integers(charge.shape))] += sign
    return charge


def compare(name: str, ours: Array, expected: np.ndarray) -> float:
    """Print a shard's shape and how far the result is from NumPy; return that, relative to the largest entry."""
    off = float(np.abs(np.asarray(ours) - expected).max() / np.abs(expected).max())
    shard_shape = "x".join(map(str, ours.addressable_shards[0].data.shape))
    print(f"{name:20}{ours.sharding.spec!s:22}{shard_shape:12}{off:.1e}")
    return off


def show_bytes() -> None:
    sizes, meshes = {"a": 4096, "b": 4096, "c": 4096}, ["y=1,x=1024", "y=32,x=32", "y=64,x=64"]
    for f in (forward, gathered):
        print(f"\n{explain(f, meshes=meshes, grad=False, **sizes)}")


def main() -> int:
    rng = np.random.default_rng(0)
    shape = tuple(SHAPE.values())
    field = (rng.normal(size=shape) + 1j * rng.normal(size=shape)).astype(np.complex64)
    charge = charges(rng)
    print(f"{'against NumPy':20}{'sharding':22}{'shard':12}relative difference")
    with jax.set_mesh(jax.make_mesh((4, 2), ("y", "x"), axis_types=(AxisType.Auto,) * 2)):
        spectrum = jax.block_until_ready(forward(field))
        worst = [
            compare("spectrum", spectrum, np.fft.fftn(field)),
            compare("and back", jax.block_until_ready(backward(spectrum)), field),
            compare("potential", jax.block_until_ready(solve(charge)), plain_solve(charge)),
        ]
    show_bytes()
    if not np.max(worst) < TOLERANCE:
        print(f"\nFAILED: off by {np.max(worst):.1e}, over {TOLERANCE:.0e}")
        return 1
    print("\nTransforms and potential are those of NumPy.")
    return 0


if __name__ == "__main__":
    sys.exit(main())
