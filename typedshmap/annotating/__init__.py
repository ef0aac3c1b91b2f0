"""Plain calls of ``jax.shard_map`` as typed ones: what a program says of its arrays, written as hints."""
