import jax
import jax.numpy as jnp
from jax.sharding import AxisType, PartitionSpec as P

mesh = jax.make_mesh((4, 2), ("dp", "tp"), axis_types=(AxisType.Auto,) * 2)


def init(key, sizes):
    keys = jax.random.split(key, len(sizes) - 1)
    shapes = zip(sizes[:-1], sizes[1:])
    return [{"w": jax.random.normal(k, shape), "b": jnp.zeros(shape[1])} for k, shape in zip(keys, shapes)]


def predict(params, x):
    for layer in params[:-1]:
        x = jax.nn.relu(x @ layer["w"] + layer["b"])
    return x @ params[-1]["w"] + params[-1]["b"]


def grads(params, x, y):
    def loss(params):
        return jnp.mean((predict(params, x) - y) ** 2)

    return jax.lax.pmean(jax.grad(loss)(jax.lax.pcast(params, "dp", to="varying")), "dp")


params = init(jax.random.key(0), [8, 16, 16, 4])
replicated = jax.tree.map(lambda _: P(), params)
step = jax.shard_map(grads, mesh=mesh, in_specs=(replicated, P("dp"), P("dp")), out_specs=replicated)
print(jax.tree.map(jnp.shape, jax.jit(step)(params, jnp.ones((8, 8)), jnp.ones((8, 4)))))
