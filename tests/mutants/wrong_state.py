"""Mutants of the restored checkpoint, of the rows with noise."""

from classics import NOISED, RESTORED
from wrong import Mutant

BOTH = (True, False)

CHECKPOINT = (
    Mutant("C1", "other specs", "saved by shards of dp within tp, read as shards of tp within dp", RESTORED,
        'Float32[Array, "[rows/dp,tp] model"]) ->', 'Float32[Array, "[rows/tp,dp] model"]) ->', "types", BOTH),
    Mutant("C2", "other specs", "restored in the order of the other axis", RESTORED,
        'first = jax.lax.axis_index(("dp", "tp"))', 'first = jax.lax.axis_index(("tp", "dp"))', "types", BOTH),
)  # fmt: skip

NOISE = (
    Mutant("R1", "key reuse", "every shard draws with the keys of the first rows", NOISED,
        'rows = jax.lax.axis_index("dp") * len(x) + jnp.arange(len(x))', "rows = jnp.arange(len(x))", "mesh"),
    Mutant("R3", "drift", "replicas of the scale from keys of their own", NOISED,
        "scale = jax.random.normal(for_all,",
        'scale = jax.random.normal(jax.random.fold_in(for_all, jax.lax.axis_index("dp")),', "types", BOTH),
)  # fmt: skip
