"""Mutants of the training steps and of the MLP."""

from classics import AT_REST, BY_HAND, FORWARD, GRADIENTS, STEP, STEP_BY_HAND
from wrong import Mutant

BOTH = (True, False)

DATA_PARALLEL = (
    Mutant(
        "D1", "K22", "standardised by the mean of the shard's rows", STEP,
        'mean = reduce(x, "[b/dp] i -> i", "mean")', "mean = x.mean(0)", "mesh",
    ),
    Mutant(
        "D2", "K22", "standardised by the variance of the shard's rows", STEP,
        'variance = reduce((x - mean) ** 2, "[b/dp] i -> i", "mean")', "variance = x.var(0)", "mesh",
    ),
    Mutant(
        "D3", "K25", "every shard drops the same places: a mask of the shard's shape", STEP,
        "jax.random.bernoulli(key, KEEP, (size(\"batch\"), size(\"inputs\")))",
        "jax.random.bernoulli(key, KEEP, x.shape)", "mesh",
    ),
    Mutant(
        "D4", "K25", "every shard takes the first rows of the mask", STEP,
        'jax.lax.axis_index("dp") * len(x), len(x))', "0, len(x))", "mesh",
    ),
    Mutant(
        "D5", "local size", "the sum divided by the shard's batch", STEP,
        '"[b/dp] o ->", "sum") / size("batch")', '"[b/dp] o ->", "sum") / len(x)', "mesh",
    ),
    Mutant(
        "D6", "local size", "the learning rate scaled by the shard's batch", STEP,
        'updated(weights, gradients, size("batch")), value\n\n\n@', "updated(weights, gradients, len(x)), value\n\n\n@",
        "mesh",
    ),
    Mutant(
        "D7", "missing sum", "the loss of the shard's rows", STEP,
        'reduce(errors**2, "[b/dp] o ->", "sum")', "jnp.sum(errors**2)", "types",
    ),
    Mutant(
        "D8", "K7", "gradients that JAX has summed are summed again", STEP,
        "value, gradients = jax.value_and_grad(loss)(weights)\n    return",
        "value, gradients = jax.value_and_grad(loss)(weights)\n"
        '    gradients = jax.lax.psum(gradients, "dp")\n    return',
        "mesh",
    ),
    Mutant(
        "D9", "unchecked", "check_vma=False around a gradient that JAX's types would have summed", STEP,
        "@typed_shard_map\ndef step(", "@typed_shard_map(check_vma=False)\ndef step(", "types",
    ),
    Mutant(
        "D10", "missing sum", "gradients not averaged", STEP_BY_HAND,
        '    gradients = jax.lax.pmean(gradients, "dp")\n', "", "types",
    ),
    Mutant(
        "D11", "sum for mean", "gradients summed instead of averaged", STEP_BY_HAND,
        'gradients = jax.lax.pmean(gradients, "dp")', 'gradients = jax.lax.psum(gradients, "dp")', "mesh",
    ),
    Mutant(
        "D12", "averaged twice", "averaged gradients divided by the number of shards", STEP_BY_HAND,
        'gradients = jax.lax.pmean(gradients, "dp")',
        'gradients = jax.tree.map(lambda g: g / jax.lax.axis_size("dp"), jax.lax.pmean(gradients, "dp"))', "mesh",
    ),
    Mutant(
        "D13", "missing sum", "the loss returned is the shard's", STEP_BY_HAND,
        'jax.lax.pmean(value, "dp")', "value", "types",
    ),
    Mutant(
        "D14", "K27", "a mean in the loss and another over its gradients, which are those of all shards by then",
        STEP_BY_HAND,
        "return jnp.mean(jnp.sum((x @ weights.w + weights.b - y) ** 2, 1))",
        'return jax.lax.psum(jnp.mean(jnp.sum((x @ weights.w + weights.b - y) ** 2, 1)), "dp")', "mesh",
    ),
)  # fmt: skip

TENSOR_PARALLEL = (
    Mutant(
        "T1", "K6", "a product over a sharded dim without its psum", FORWARD,
        'jax.lax.psum(h @ w.down, "tp")', "h @ w.down", "types", BOTH,
    ),
    Mutant(
        "T2", "wrong axis", "summed over the wrong axis", FORWARD,
        'jax.lax.psum(h @ w.down, "tp")', 'jax.lax.psum(h @ w.down, "dp")', "types", BOTH,
    ),
    Mutant(
        "T3", "wrong axis", "summed over the batch's axis, too", FORWARD,
        'jax.lax.psum(h @ w.down, "tp")', 'jax.lax.psum(h @ w.down, ("dp", "tp"))', "mesh", BOTH,
    ),
    Mutant(
        "T4", "summed twice", "psum of a sum by jax.lax", FORWARD,
        'jax.lax.psum(h @ w.down, "tp")', 'jax.lax.psum(jax.lax.psum(h @ w.down, "tp"), "tp")', "mesh",
    ),
    Mutant(
        "T5", "K7", "psum of a sum by the operation", FORWARD,
        "return x + y\n", 'return x + psum(y, "tp")\n', "types",
    ),
    Mutant(
        "T6", "inside the sum", "a bias added on every shard before the psum", FORWARD,
        'jax.lax.psum(h @ w.down, "tp") + w.down_bias', 'jax.lax.psum(h @ w.down + w.down_bias, "tp")', "mesh",
    ),
    Mutant(
        "T7", "inside the sum", "the residual added on every shard before the psum", FORWARD,
        'y = jax.lax.psum(h @ w.down, "tp") + w.down_bias\n    return x + y',
        'return jax.lax.psum(x + h @ w.down, "tp") + w.down_bias', "mesh",
    ),
    Mutant(
        "T8", "K22", "normed by the mean of the shard's columns", FORWARD,
        'jax.lax.pmean(jnp.mean(h * h, -1, keepdims=True), "tp")', "jnp.mean(h * h, -1, keepdims=True)", "mesh",
    ),
    Mutant(
        "T9", "sum for mean", "the means of the shards summed", FORWARD,
        'jax.lax.pmean(jnp.mean(h * h, -1, keepdims=True), "tp")',
        'jax.lax.psum(jnp.mean(h * h, -1, keepdims=True), "tp")', "mesh",
    ),
    Mutant(
        "T10", "K8", "weights given by rows, used by columns", FORWARD,
        'up: Float32[Array, "model [ff/tp]"]', 'up: Float32[Array, "[model/tp] ff"]', "JAX", BOTH,
    ),
    Mutant(
        "T11", "order of a sum", "a nonlinear function of partial sums, summed afterwards", AT_REST,
        'jax.nn.relu(einsum(h, down, "[b/dp] [f/tp], [f/tp] m -> [b/dp] m"))',
        'jax.lax.psum(jax.nn.relu(h @ down), "tp")', "mesh",
    ),
    Mutant(
        "T12", "gathered wrongly", "gathered along the wrong dim", AT_REST,
        'jax.lax.all_gather(down, "dp", tiled=True)', 'jax.lax.all_gather(down, "dp", axis=1, tiled=True)', "types",
        BOTH,
    ),
    Mutant(
        "T13", "K17", "gathered over the major axis first", AT_REST,
        'down: Float32[Array, "[ff/tp,dp] model"]', 'down: Float32[Array, "[ff/dp,tp] model"]', "types", BOTH,
    ),
    Mutant(
        "T14", "missing gather", "weights not gathered", AT_REST,
        '    down = jax.lax.all_gather(down, "dp", tiled=True)\n', "", "types", BOTH,
    ),
    Mutant(
        "T15", "missing sum", "the loss of the shard's rows", GRADIENTS,
        'reduce((mlp(x, w) - y) ** 2, "[b/dp] m ->", "mean")', "jnp.mean((mlp(x, w) - y) ** 2)", "types",
    ),
    Mutant(
        "T16", "K7", "gradients of sharded weights summed over the axis that shards them", GRADIENTS,
        "return jax.value_and_grad(loss)(w)\n",
        "value, gradients = jax.value_and_grad(loss)(w)\n"
        '    return value, replace(gradients, up=jax.lax.psum(gradients.up, "tp"))\n',
        "mesh",
    ),
    Mutant(
        "T17", "K27", "a loss that every shard of tp holds whole, taken for its share", BY_HAND,
        ' * jax.lax.axis_size("tp"))', ")", "mesh",
    ),
    Mutant(
        "T18", "missing sum", "the gradient of weights that are equal on all shards summed over one axis of two",
        BY_HAND, '    gradients = replace(gradients, down_bias=jax.lax.psum(gradients.down_bias, "tp"))\n', "", "mesh",
    ),
    Mutant(
        "T19", "missing sum", "gradients not summed over the batch", BY_HAND,
        '    gradients = jax.lax.psum(gradients, "dp")\n', "", "types",
    ),
    Mutant(
        "T20", "local size", "the share divided by the shard's batch", BY_HAND,
        '(size("batch") * size("model") *', '(x.shape[0] * size("model") *', "mesh",
    ),
    Mutant(
        "T21", "K27", "a psum of the loss inside jax.grad", BY_HAND,
        "return jnp.sum((mlp(x, w) - y) ** 2) / (size",
        'return jax.lax.psum(jnp.sum((mlp(x, w) - y) ** 2), "tp") / (size',
        "mesh",
    ),
)  # fmt: skip
