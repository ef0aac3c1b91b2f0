"""Mutants of the pipeline, of the stencil, of the Fourier transform."""

from classics import FOURIER, HEAT, PIPELINE
from wrong import Mutant

BOTH = (True, False)

STAGES = (
    Mutant("P1", "one too few", "the last microbatch never leaves the pipeline", PIPELINE,
        'jnp.arange(size("micro") + count - 1))', 'jnp.arange(size("micro") + max(count - 2, 0)))', "mesh"),
    Mutant("P2", "wrong direction", "activations are handed to the shard before", PIPELINE,
        "(i, (i + 1) % count)", "(i, (i - 1) % count)", "mesh"),
    Mutant("P3", "boundary", "every shard takes fresh microbatches", PIPELINE,
        "jnp.where(mine == 0, fresh, arriving)", "jnp.where(mine >= 0, fresh, arriving)", "mesh"),
    Mutant("P5", "boundary", "every shard writes its result, and all are summed", PIPELINE,
        "is_done = (mine == count - 1) & (at >= 0)", "is_done = at >= 0", "mesh"),
    Mutant("P6", "missing sum", "what the shard has done is returned", PIPELINE,
        'return jax.lax.psum(done, "pp")', "return done", "types", BOTH),
    Mutant("P7", "sum for mean", "the only result averaged with the other shards' zeros", PIPELINE,
        'return jax.lax.psum(done, "pp")', 'return jax.lax.pmean(done, "pp")', "mesh"),
    Mutant("P8", "missing offset", "biases of the first stages on every shard", PIPELINE,
        "first_stage = mine * len(w)", "first_stage = 0", "mesh"),
    Mutant("P10", "wrong shift", "activations are handed on before the stage has run", PIPELINE,
        'jax.lax.ppermute(h, "pp"', 'jax.lax.ppermute(jnp.where(mine == 0, fresh, arriving), "pp"', "mesh"),
    Mutant("P11", "order of sends", "the first shard sends to itself, and the others to each other", PIPELINE,
        "(i, (i + 1) % count)", "(i, 2 * i % count)", "mesh"),
)  # fmt: skip

STENCIL = (
    Mutant("H1", "wrong neighbour", "both halos from the same side", HEAT,
        "after = shifted(first, axis, -1)", "after = shifted(first, axis, 1)", "mesh"),
    Mutant("H2", "wrong axis", "halos of rows from the neighbours along the other axis", HEAT,
        'tall = with_halo(t, "y", 0)', 'tall = with_halo(t, "x", 0)', "mesh"),
    Mutant("H3", "boundary", "the last shard is handled like the others", HEAT,
        "is_end = mine == (0 if by == 1 else count - 1)", "is_end = mine == (0 if by == 1 or count == 1 else count)",
        "mesh"),
    Mutant("H5", "stale halo", "rows of all steps from the halos of the first", HEAT,
        "before = shifted(last, axis, 1)", "before = jnp.full_like(last, EDGE)", "mesh"),
    Mutant("H6", "missing offset", "the heated row is looked for in every shard", HEAT,
        "rows = first_row + jnp.arange(t.shape[0])", "rows = jnp.arange(t.shape[0])", "mesh"),
    Mutant("H9", "order of a sum", "the roots of the shards' sums, summed", HEAT,
        'jnp.sqrt(jax.lax.psum(jnp.sum((t - start) ** 2), ("y", "x")))',
        'jax.lax.psum(jnp.sqrt(jnp.sum((t - start) ** 2)), ("y", "x"))', "mesh"),
    Mutant("H10", "K22", "the mean of the shard taken off", HEAT,
        'mean = jax.lax.pmean(t.mean(), ("y", "x"))', "mean = t.mean()", "mesh"),
    Mutant("H12", "local maximum", "the largest of the shards along one axis", HEAT,
        'jax.lax.pmax(t.max(), ("y", "x"))', 'jax.lax.pmax(t.max(), "y")', "types", BOTH),
)  # fmt: skip

TRANSFORM = (
    Mutant("F1", "missing offset", "twiddles by the shard's own column", FOURIER,
        'column = jax.lax.axis_index(("p", "q")) * columns + jnp.arange(columns)', "column = jnp.arange(columns)",
        "mesh"),
    Mutant("F2", "K17", "the shard's number with the axes in the other order", FOURIER,
        'column = jax.lax.axis_index(("p", "q"))', 'column = jax.lax.axis_index(("q", "p"))', "mesh"),
    Mutant("F3", "K17", "transposed with the axes in the other order, by the operation", FOURIER,
        '"k [c/p,q] -> [k/p,q] c"', '"k [c/q,p] -> [k/q,p] c"', "types", BOTH),
    Mutant("F4", "K17", "transposed with the axes in the other order, by jax.lax", FOURIER,
        'all_to_all(short, "k [c/p,q] -> [k/p,q] c")', 'jax.lax.all_to_all(short, ("q", "p"), 0, 1, tiled=True)',
        "types", BOTH),
    Mutant("F5", "K17", "the result is said to be sharded in the other order", FOURIER,
        'Float32[Array, "[rows*columns/p,q]"]]:', 'Float32[Array, "[rows*columns/q,p]"]]:', "types", BOTH),
    Mutant("F6", "K21", "transposed back, and flattened: the shards are woven", FOURIER,
        "low.reshape(-1)", 'all_to_all(low, "[k/p,q] c -> k [c/p,q]").reshape(-1)', "types", BOTH),
    Mutant("F7", "local transform", "transformed along the sharded dim, before the transpose", FOURIER,
        'whole = all_to_all(short, "k [c/p,q] -> [k/p,q] c")\n    return jnp.fft.fft(whole, axis=1)',
        'return all_to_all(jnp.fft.fft(short, axis=1), "k [c/p,q] -> [k/p,q] c")', "mesh"),
    Mutant("F8", "local size", "twiddles by the length of the shard", FOURIER,
        'n = size("rows") * size("columns")', "n = x.size", "mesh"),
    Mutant("F11", "missing sum", "the energy of the shard", FOURIER,
        'jax.lax.psum(power.sum(), ("p", "q"))', "power.sum()", "types", BOTH),
    Mutant("F12", "missing sum", "the energy summed over one axis of two", FOURIER,
        'jax.lax.psum(power.sum(), ("p", "q"))', 'jax.lax.psum(power.sum(), "p")', "types", BOTH),
)  # fmt: skip
