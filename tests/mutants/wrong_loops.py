"""Mutants of the accumulated gradients, of the solver, of what is rounded, of the loader."""

from classics import ACCUMULATED, AVERAGED, LOADED, QUANTISED, SOLVED
from wrong import Mutant

BOTH, UNCHECKED = (True, False), (False,)

ACCUMULATION = (
    Mutant("N1", "padding", "padding looked for at the end of every shard, and summed", ACCUMULATED,
        'jax.lax.axis_index("dp") * rows + jnp.arange(rows)', "jnp.arange(rows)", "mesh"),
    Mutant("N3", "accumulation", "what has been accumulated is summed in every iteration", ACCUMULATED,
        "(total + value, gradients + gradient)",
        '(total + value, jax.lax.pcast(jax.lax.psum(gradients + gradient, "dp"), "dp", to="varying"))', "mesh"),
    Mutant("N4", "accumulation", "divided by what the shard has accumulated", ACCUMULATED,
        'jax.lax.psum(is_real.sum(), "dp")', "is_real.sum()", "types", BOTH),
    Mutant("N5", "mean of ratios", "the shards' means, of different numbers of rows, averaged", ACCUMULATED,
        'jax.lax.psum(total, "dp") / count', 'jax.lax.pmean(total / (size("micro") * is_real.sum()), "dp")', "mesh"),
    Mutant("N6", "some meshes only", "gradients summed on meshes of more than four shards", ACCUMULATED,
        'jax.lax.psum(gradients, "dp") / count',
        '(jax.lax.psum(gradients, "dp") if jax.lax.axis_size("dp") > 4 else gradients) / count', "types"),
    Mutant("N7", "accumulation", "averaged over the shards and counted over all of them", ACCUMULATED,
        'jax.lax.psum(gradients, "dp") / count', 'jax.lax.pmean(gradients, "dp") / count', "mesh"),
)  # fmt: skip

SOLVER = (
    Mutant("W1", "deadlock", "each shard ends when it has converged, and the others wait for it", SOLVED,
        'jax.lax.pmax(jnp.abs(new - x).max() * jnp.abs(b).max(), "dp")', "jnp.abs(new - x).max() * jnp.abs(b).max()",
        "types", UNCHECKED),
    Mutant("W2", "deadlock", "a mean that only shards with large entries take", SOLVED,
        'jax.lax.pmean(x.mean(), "dp")',
        'jax.lax.cond(x[0] > 0, lambda: jax.lax.pmean(x.mean(), "dp"), lambda: x.mean())', "types", UNCHECKED),
    Mutant("W3", "control flow", "a condition on the shard's entries, which JAX types as equal on all shards", SOLVED,
        "(residual > 1e-2)", "(jnp.abs(state[0]).max() > 1) & (residual > 1e-2)", "types", BOTH),
    Mutant("W4", "sum for maximum", "ended by the sum of what is left on the shards", SOLVED,
        'jax.lax.pmax(jnp.abs(new - x).max() * jnp.abs(b).max(), "dp")',
        'jax.lax.psum(jnp.abs(new - x).max() * jnp.abs(b).max(), "dp")', "mesh"),
)  # fmt: skip

QUANTISATION = (
    Mutant("V1", "scale", "scaled by the largest weight of the shard", QUANTISED,
        'jax.lax.pmax(jnp.abs(w).max(), "tp")', "jnp.abs(w).max()", "types", BOTH),
    Mutant("V2", "scale", "partial sums of different scales added", QUANTISED,
        'jax.lax.pmax(jnp.abs(w).max(), "tp") / LARGEST\n    small = (w / scale)',
        'jax.lax.pmax(jnp.abs(w).max(), "tp") / LARGEST\n    small = (w / jnp.abs(w).max() * LARGEST)', "mesh"),
)  # fmt: skip

HALF = (
    Mutant(
        "B1", "low precision", "a sum in bfloat16, to which a row no longer adds anything when it is large", AVERAGED,
        "SUM, COUNT = jnp.float32,", "SUM, COUNT = jnp.bfloat16,", "mesh",
    ),
    Mutant("B2", "low precision", "rows counted in bfloat16, which has no whole number between 256 and 258", AVERAGED,
        'jnp.dtype("float32")', 'jnp.dtype("bfloat16")', "mesh"),
    Mutant("B3", "scale", "rounded by the largest row of the shard, and scaled back by that of all", AVERAGED,
        "jnp.abs(x * scale)", "jnp.abs(x / jnp.abs(x).max())", "mesh"),
)  # fmt: skip

LOADING = (
    Mutant("L1", "same data", "every shard loads the first rows", LOADED,
        'first = jax.lax.axis_index(("dp", "tp")) * count', "first = 0", "mesh"),
    Mutant("L3", "K17", "rows loaded in the order of the other axis", LOADED,
        'first = jax.lax.axis_index(("dp", "tp"))', 'first = jax.lax.axis_index(("tp", "dp"))', "mesh"),
    Mutant("L4", "K25", "every shard shuffles in another way", LOADED,
        'order = jax.random.permutation(key, size("rows"))',
        'order = jax.numpy.roll(jax.random.permutation(key, size("rows")), jax.lax.axis_index("dp"))', "mesh"),
)  # fmt: skip
