import jax
import jax.numpy as jnp
from jax.sharding import AxisType, PartitionSpec as P

mesh = jax.make_mesh((4, 2), ("dp", "tp"), axis_types=(AxisType.Auto,) * 2)


def train_step(w, x, y, lr=0.1):
    def loss_fn(w, x, y):
        def shard_loss(w, x, y):
            error = x @ w - y
            return jax.lax.pmean(jnp.mean(error**2), "dp")

        loss = jax.shard_map(shard_loss, mesh=mesh, in_specs=(P(), P("dp"), P("dp")), out_specs=P())
        return loss(w, x, y)

    loss, grad = jax.value_and_grad(loss_fn)(w, x, y)
    return w - lr * grad, loss


step = jax.jit(train_step)
w = jnp.zeros(4)
for _ in range(3):
    w, loss = step(w, jnp.ones((16, 4)), jnp.ones(16))
print(float(loss))
