"""Mutants of the quickstart, made of its source as it stands."""

from dataclasses import replace

from classics import QUICKSTART, TRAINING
from wrong import Mutant

# A model takes long to compile: where one axis is enough to find it, it is tried on that.
DP, TP = ({"dp": 2, "tp": 1},), ({"dp": 1, "tp": 2},)

QUICK = (
    Mutant("Q1", "K6", "an MLP without its psum", QUICKSTART,
        'return einsum(h, down, "[b/dp] s [f/tp], [f/tp] m -> [b/dp] s m")', "return h @ down", "types"),
    Mutant("Q2", "summed twice", "attention's psum taken again", replace(QUICKSTART, meshes=TP),
        'return einsum(mixed, out, "[b/dp] s [h/tp] d, [h/tp] d m -> [b/dp] s m")',
        'return jax.lax.psum(einsum(mixed, out, "[b/dp] s [h/tp] d, [h/tp] d m -> [b/dp] s m"), "tp")', "mesh"),
    Mutant("Q3", "local normaliser", "a logsumexp of the shard's vocabulary", QUICKSTART,
        'total = logsumexp(logits, "[b/dp] s [v/tp] -> [b/dp] s")', "total = jax.nn.logsumexp(logits, -1)", "types"),
    Mutant("Q4", "missing offset", "bytes looked up in the shard's rows", QUICKSTART,
        'return take(table, ids, "[v/tp] m, [b/dp] s -> [b/dp] s m")', "return table[ids]", "types"),
    Mutant("Q5", "missing sum", "the mean of the shard's text", QUICKSTART,
        'return reduce(total - chosen, "[b/dp] s ->", "mean")', "return jnp.mean(total - chosen)", "types"),
    Mutant("Q6", "local size", "the sum over the shard's number of bytes", replace(QUICKSTART, meshes=DP),
        'return reduce(total - chosen, "[b/dp] s ->", "mean")',
        'return reduce(total - chosen, "[b/dp] s ->", "sum") / total.size', "mesh"),
    Mutant("Q7", "K8", "the table's axes changed places in its hint", QUICKSTART,
        'embed: Float32[Array, "[vocab/tp] [model/dp]"]', 'embed: Float32[Array, "[vocab/dp] [model/tp]"]', "types"),
    Mutant("Q8", "gathered wrongly", "positions gathered over another axis than theirs", QUICKSTART,
        '"s [m/dp] -> s m ~dp"', '"s [m/tp] -> s m ~tp"', "types"),
    Mutant("Q9", "missing gather", "weights not gathered before their use", QUICKSTART,
        'up = all_gather(layer.up, "[m/dp] [f/tp] -> m [f/tp] ~dp")\n'
        '    down = all_gather(layer.down, "[f/tp] [m/dp] -> [f/tp] m ~dp")\n    return',
        'up = layer.up\n    down = all_gather(layer.down, "[f/tp] [m/dp] -> [f/tp] m ~dp")\n    return', "types"),
    Mutant("Q10", "K7", "gradients summed again, by the operation", TRAINING,
        "return adam(state, gradients), value", 'return adam(state, ts.psum(gradients, "dp")), value', "types"),
    Mutant("Q11", "K7", "gradients summed again, by jax.lax", replace(TRAINING, meshes=DP),
        "return adam(state, gradients), value", 'return adam(state, jax.lax.psum(gradients, "dp")), value', "mesh"),
    Mutant("Q12", "K22", "every gradient over the norm of what the shard holds of it", replace(TRAINING, meshes=DP),
        "mean = tree_map(lambda m, g: 0.9 * m + 0.1 * g, state.mean, gradients)",
        "mean = tree_map(lambda m, g: 0.9 * m + 0.1 * g / (0.1 + jnp.linalg.norm(g.ravel())), state.mean, gradients)",
        "mesh"),
    Mutant("Q13", "K22", "gradients clipped by the norm of all that the shard holds", TRAINING,
        "return adam(state, gradients), value",
        "norm = jnp.sqrt(sum(jnp.sum(g**2) for g in jax.tree.leaves(gradients)))\n"
        "    return adam(state, jax.tree.map(lambda g: g / norm, gradients)), value", "types"),
)  # fmt: skip
