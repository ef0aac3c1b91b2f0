"""Arrays at rest: what hints say of them, and placing values, whole or by process, as they say."""

from .. import _jax
from .callbacks import from_callback
from .placing import shard
from .processes import from_process_local
from .specs import partition_specs, shardings
from .structs import shape_structs

_jax.load_extend()

__all__ = ["from_callback", "from_process_local", "partition_specs", "shape_structs", "shard", "shardings"]
