"""A long Fourier transform in two short ones, with a transpose of the global array between them.

The signal's element ``j * columns + c`` stands in row ``j``, column ``c``. Frequency ``k + rows * f``
comes out in row ``k``, column ``f``.
"""

import jax
import jax.numpy as jnp

from typedshmap import Array, Complex64, Float32, all_to_all, size, typed, typed_shard_map

Signal = Float32[Array, "rows [columns/p,q]"]
Spectrum = Complex64[Array, "[rows/p,q] columns"]


@typed
def transformed(x: Signal) -> Spectrum:
    rows, columns = x.shape
    n = size("rows") * size("columns")
    column = jax.lax.axis_index(("p", "q")) * columns + jnp.arange(columns)
    angle = -2 * jnp.pi / n * jnp.arange(rows)[:, None] * column
    short = jnp.fft.fft(x, axis=0) * jax.lax.complex(jnp.cos(angle), jnp.sin(angle))
    whole = all_to_all(short, "k [c/p,q] -> [k/p,q] c")
    return jnp.fft.fft(whole, axis=1)


@typed
def frequencies(spectrum: Spectrum) -> Float32[Array, "[rows/p,q] columns"]:
    """Of every element, from 0 to 1."""
    first = jax.lax.axis_index(("p", "q")) * spectrum.shape[0]
    row = first + jnp.arange(spectrum.shape[0])
    return (row[:, None] + size("rows") * jnp.arange(size("columns"))) / (size("rows") * size("columns"))


@typed_shard_map
def spectrum(x: Signal) -> tuple[Spectrum, Float32[Array, ""], Float32[Array, "[rows*columns/p,q]"]]:
    """The transform, its energy, and the low frequencies' power, flat."""
    whole = transformed(x)
    power = jnp.abs(whole) ** 2
    energy = jax.lax.psum(power.sum(), ("p", "q")) / (size("rows") * size("columns"))
    low = jnp.where(frequencies(whole) < 0.23, power, 0)
    return whole, energy, low.reshape(-1)
