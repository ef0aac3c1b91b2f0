"""Train: `python -m regression.train --mesh dp=4,tp=2`; with `--devices 8` on virtual CPU devices."""

import argparse
import os


def main() -> None:
    """Train, and print the loss."""
    parser = argparse.ArgumentParser(description="Train a small model.")
    parser.add_argument("--mesh", default="dp=4,tp=2", help="how many devices each mesh axis has")
    parser.add_argument("--devices", type=int, help="make so many virtual CPU devices")
    parser.add_argument("--steps", type=int, default=100)
    given = parser.parse_args()
    if given.devices is not None:  # before JAX looks for devices
        os.environ["JAX_PLATFORMS"] = "cpu"
        os.environ["XLA_FLAGS"] = f"--xla_force_host_platform_device_count={given.devices}"

    import jax
    import numpy as np

    from typedshmap import shard

    from .model import Inputs, Outputs, init, step

    axes = {name: int(size) for name, _, size in (axis.partition("=") for axis in given.mesh.split(","))}
    features, losses = 16, []
    rng, teacher = np.random.default_rng(0), np.random.default_rng(1).standard_normal(features)
    with jax.set_mesh(jax.make_mesh(tuple(axes.values()), tuple(axes), (jax.sharding.AxisType.Auto,) * len(axes))):
        params, state = init(jax.random.key(0), features=features, hidden=64)
        for _ in range(given.steps):
            x = rng.standard_normal((64, features), np.float32)
            y = np.tanh(x @ teacher).astype(np.float32)
            batch = shard(x, Inputs), shard(y, Outputs)
            params, state, loss = jax.block_until_ready(step(params, state, *batch))
            losses.append(float(loss))
    print(f"loss {losses[0]:.4f} -> {losses[-1]:.4f}")


if __name__ == "__main__":
    main()
