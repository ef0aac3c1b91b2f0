"""Arrays of which one device holds other bits than it should."""

import jax
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec


def drifting(mesh: Mesh, spec: PartitionSpec, value: np.ndarray, device: int, byte: int = 0, bit: int = 0) -> jax.Array:
    """An array placed on a mesh, with one bit flipped on the device of that number, if this process has one."""
    sharding, parts, devices = NamedSharding(mesh, spec), [], list(mesh.devices.flat)
    for each, index in sharding.addressable_devices_indices_map(value.shape).items():
        part = np.array(value[index], order="C")
        if devices.index(each) == device:
            raw = part.reshape(-1).view(np.uint8)
            raw[byte % raw.size] ^= 1 << bit
        parts.append(jax.device_put(part, each))
    return jax.make_array_from_single_device_arrays(value.shape, sharding, parts)
