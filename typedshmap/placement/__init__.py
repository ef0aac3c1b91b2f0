"""Arrays outside functions: specs, shardings and structs from hints, and the placement of values by hints."""

from .. import _jax
from .global_arrays import from_callback, shard
from .process_local import from_process_local
from .structs import partition_specs, shape_structs, shardings

_jax.trace.load_extend()

__all__ = ["from_callback", "from_process_local", "partition_specs", "shape_structs", "shard", "shardings"]
