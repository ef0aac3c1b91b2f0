"""Mutants of ring attention, of the experts, of cross-entropy."""

from classics import ATTENTION, EXPERTS, LOSS, TOKEN_LOSSES
from wrong import Mutant

BOTH = (True, False)

RING = (
    Mutant(
        "A1", "wrong direction", "keys and values go the way that the mask does not expect", ATTENTION,
        "block = (mine - i) % count", "block = (mine + i) % count", "mesh",
    ),
    Mutant(
        "A2", "wrong shift", "keys go two shards at a time", ATTENTION,
        'k = ppermute(k, "[b/dp] [s/sp] d", shift=1', 'k = ppermute(k, "[b/dp] [s/sp] d", shift=2', "mesh",
    ),
    Mutant(
        "A3", "wrong axis", "keys go round the batch's axis", ATTENTION,
        'k = ppermute(k, "[b/dp] [s/sp] d", shift=1, axis="sp")',
        'k = ppermute(k, "[b/dp] [s/sp] d", shift=1, axis="dp")',
        "mesh",
    ),
    Mutant(
        "A4", "wrong axis", "the place in the sequence from the batch's axis", ATTENTION,
        'jax.lax.axis_index("sp")', 'jax.lax.axis_index("dp")', "mesh",
    ),
    Mutant(
        "A5", "missing offset", "positions counted from the start of the shard", ATTENTION,
        "return block * rows + jnp.arange(rows)", "return jnp.arange(rows)", "mesh",
    ),
    Mutant(
        "A6", "one too few", "the last block is left out", ATTENTION,
        "fori_loop(0, count, iteration, start)", "fori_loop(0, max(count - 1, 1), iteration, start)", "mesh",
    ),
    Mutant(
        "A7", "local normaliser", "the total not rescaled where a larger score comes", ATTENTION,
        "total = total * shrink +", "total = total +", "mesh",
    ),
    Mutant(
        "A8", "local normaliser", "only the keys of the last block count in the total", ATTENTION,
        "total = total * shrink + weights.sum(-1)", "total = weights.sum(-1)", "mesh",
    ),
    Mutant(
        "A9", "left behind", "values stay where they are", ATTENTION,
        'v = ppermute(v, "[b/dp] [s/sp] d", shift=1, axis="sp")', "v = 1.0 * v", "mesh",
    ),
    Mutant(
        "A10", "local size", "scaled by the shard's sequence", ATTENTION,
        'return out / total[..., None]', 'return out / total[..., None] * (size("seq") / rows)', "mesh",
    ),
    Mutant(
        "A11", "K8", "the result is said to be sharded otherwise", ATTENTION,
        "def attention(q: Rows, k: Rows, v: Rows) -> Rows:",
        'def attention(q: Rows, k: Rows, v: Rows) -> Float32[Array, "[batch/sp] [seq/dp] head"]:', "types", BOTH,
    ),
)  # fmt: skip

MIXTURE = (
    Mutant(
        "E1", "running total", "the tokens of earlier shards forgotten in the capacity", EXPERTS,
        "is_kept = place + earlier(chosen)[expert] < capacity", "is_kept = place < capacity", "mesh",
    ),
    Mutant(
        "E2", "running total", "the tokens of later shards counted among the earlier ones", EXPERTS,
        'jnp.arange(len(counts)) < jax.lax.axis_index("ep")', 'jnp.arange(len(counts)) != jax.lax.axis_index("ep")',
        "mesh",
    ),
    Mutant(
        "E3", "local size", "the capacity from the shard's tokens", EXPERTS,
        'capacity = size("tokens") //', "capacity = len(x) //", "mesh",
    ),
    Mutant(
        "E4", "mean of products", "the balance of every shard, averaged", EXPERTS,
        'share, gate = jax.lax.pmean((chosen.mean(0), gates.mean(0)), "ep")\n'
        '    return size("experts") * jnp.sum(share * gate)',
        'return size("experts") * jax.lax.pmean(jnp.sum(chosen.mean(0) * gates.mean(0)), "ep")', "mesh",
    ),
    Mutant(
        "E5", "missing sum", "the load of the shard's tokens", EXPERTS,
        'load = psum((chosen * is_kept[:, None]).sum(0), "e ~ep -> e").astype(jnp.int32)',
        "load = (chosen * is_kept[:, None]).sum(0).astype(jnp.int32)", "types", BOTH,
    ),
    Mutant(
        "E6", "missing offset", "every shard scales by the first experts' numbers", EXPERTS,
        'first = jax.lax.axis_index("ep") * len(w)', "first = 0", "mesh",
    ),
    Mutant(
        "E7", "wrong shard", "tokens come back from another expert's shard", EXPERTS,
        'back = all_to_all(done, "[e/ep] c m -> e [c/ep] m")',
        "from typedshmap import ppermute\n"
        '    back = all_to_all(ppermute(done, "[e/ep] c m", shift=1), "[e/ep] c m -> e [c/ep] m")',
        "mesh",
    ),
    Mutant(
        "E8", "wrong way", "tokens come back as they went, experts split again", EXPERTS,
        'back = all_to_all(done, "[e/ep] c m -> e [c/ep] m")', 'back = all_to_all(done, "e [c/ep] m -> [e/ep] c m")',
        "types", BOTH,
    ),
    Mutant(
        "E9", "wrong way", "tokens not sent back", EXPERTS,
        'back = all_to_all(done, "[e/ep] c m -> e [c/ep] m")', "back = done", "mesh",
    ),
    Mutant(
        "E10", "K8", "split and joined the other way round by jax.lax", EXPERTS,
        'arrived = all_to_all(sent, "e [c/ep] m -> [e/ep] c m")',
        'arrived = jax.lax.all_to_all(sent, "ep", split_axis=1, concat_axis=0, tiled=True)', "JAX", BOTH,
    ),
    Mutant(
        "E11", "K21", "what arrived is laid out by shard and read by expert", EXPERTS,
        'arrived = all_to_all(sent, "e [c/ep] m -> [e/ep] c m")',
        'arrived = jax.lax.all_to_all(sent, "ep", 0, 0, tiled=True).reshape(len(w), -1, x.shape[1])', "mesh",
    ),
)  # fmt: skip

CROSS_ENTROPY = (
    Mutant(
        "X1", "local normaliser", "exponentials of the shard's columns only", LOSS,
        'jnp.log(jax.lax.psum(jnp.exp(logits - largest[:, None]).sum(-1), "tp"))',
        "jnp.log(jnp.exp(logits - largest[:, None]).sum(-1))", "types", BOTH,
    ),
    Mutant(
        "X2", "local maximum", "the shards subtract maxima of their own", LOSS,
        'jax.lax.pmax(jax.lax.stop_gradient(logits).max(-1), "tp")', "jax.lax.stop_gradient(logits).max(-1)", "types",
        BOTH,
    ),
    Mutant(
        "X3", "missing offset", "labels looked up as if every shard began with id 0", LOSS,
        "here = labels - first_id(logits)", "here = labels", "mesh",
    ),
    Mutant(
        "X4", "wrong axis", "the first id from the batch's axis", LOSS,
        'jax.lax.axis_index("tp") * logits.shape[-1]', 'jax.lax.axis_index("dp") * logits.shape[-1]', "mesh",
    ),
    Mutant(
        "X5", "local argmax", "the best of the shard's columns, numbered from the shard's start", LOSS,
        "at = logits.max(-1), jnp.argmax(logits, -1) + first_id(logits)", "at = logits.max(-1), jnp.argmax(logits, -1)",
        "mesh",
    ),
    Mutant(
        "X6", "local argmax", "the best id of every shard competes, whatever its logit", LOSS,
        'jnp.where(top == jax.lax.pmax(top, "tp"), at, -1)', "at", "mesh",
    ),
    Mutant(
        "X7", "local argmax", "the best of the shard's columns is returned", LOSS,
        'return jax.lax.pmax(jnp.where(top == jax.lax.pmax(top, "tp"), at, -1), "tp")', "return at", "types", BOTH,
    ),
    Mutant(
        "X8", "K14", "a clamped lookup on every shard declared to be a share of a sum", LOSS,
        "return jnp.where(is_here, mine, 0)", "return mine", "mesh",
    ),
    Mutant(
        "X9", "K14", "a sum due of what is equal on every shard", LOSS,
        "return jnp.where(is_here, mine, 0)", 'return jax.lax.psum(jnp.where(is_here, mine, 0), "tp")', "types", BOTH,
    ),
    Mutant(
        "X10", "missing sum", "a sum that is due is not taken", LOSS,
        '0.9 * jax.lax.psum(taken(logits, labels), "tp")', "0.9 * taken(logits, labels)", "types", BOTH,
    ),
    Mutant(
        "X11", "local size", "smoothed by the shard's vocabulary", LOSS,
        'jax.lax.psum(logits.sum(-1), "tp") / size("vocab")', 'jax.lax.psum(logits.sum(-1), "tp") / logits.shape[-1]',
        "mesh",
    ),
    Mutant(
        "X12", "mean of ratios", "the shards' weighted means, averaged", LOSS,
        'jax.lax.psum((loss * weights).sum(), "dp") / jax.lax.psum(weights.sum(), "dp")',
        'jax.lax.pmean((loss * weights).sum() / weights.sum(), "dp")', "mesh",
    ),
    Mutant(
        "X13", "K27", "a loss that is the same on every shard of tp summed over tp", LOSS,
        'jax.lax.psum((loss * weights).sum(), "dp") /',
        'jax.lax.psum(jax.lax.psum((loss * weights).sum(), "dp"), "tp") /', "mesh", BOTH,
    ),
    Mutant(
        "X14", "sum for mean", "an accuracy of several times the truth", LOSS,
        'jax.lax.pmean((guess == labels).mean(), "dp")', 'jax.lax.psum((guess == labels).mean(), "dp")', "mesh",
    ),
    Mutant(
        "X15", "missing offset", "a gradient written by hand that counts ids from the shard's start", TOKEN_LOSSES,
        "ids = first_id(logits) + jnp.arange(logits.shape[-1])", "ids = jnp.arange(logits.shape[-1])", "mesh",
        grad=True,
    ),
    Mutant(
        "X16", "local normaliser", "a gradient written by hand with the shard's softmax", TOKEN_LOSSES,
        "chances = jnp.exp(logits - normaliser(logits)[:, None])", "chances = jax.nn.softmax(logits)", "mesh",
        grad=True,
    ),
    Mutant(
        "X17", "unchecked", "a gradient written by hand under check_vma=False, which JAX divides by the size of tp",
        TOKEN_LOSSES,
        "@typed_shard_map\ndef token_losses", "@typed_shard_map(check_vma=False)\ndef token_losses", "mesh", grad=True,
    ),
)  # fmt: skip
