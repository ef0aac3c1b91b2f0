"""Virtual CPU devices for a program that is looked at without its hardware."""

from __future__ import annotations

import os

import jax

from .written import WrongUse

MOST = 512
_FLAG = "xla_force_host_platform_device_count"


def virtual_devices(count: int) -> None:
    """Let JAX have so many virtual CPU devices, unless the environment says what it has.

    It is called before anything asks JAX for a device.

    Raises:
      WrongUse: for none, or more than one machine has room for.
    """
    if not 1 <= count <= MOST:
        raise WrongUse(f"{count} virtual CPU devices are asked for; 1 to {MOST} can be made")
    if "JAX_PLATFORMS" not in os.environ:
        jax.config.update("jax_platforms", "cpu")
    if _FLAG not in os.environ.get("XLA_FLAGS", ""):
        jax.config.update("jax_num_cpu_devices", count)
