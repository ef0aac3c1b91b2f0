"""Right training steps, with mistakes that may be made in them."""

# ruff: noqa: E501

import jax
import jax.numpy as jnp
from jax import lax
from jax.sharding import PartitionSpec as P
from mistaken import case

import typedshmap as ts
from typedshmap import Array, Bool, Float, Int, Key, typed_shard_map

X = Float[Array, "[b/dp] m"]
S = Float[Array, ""]
W = Float[Array, "m"]


@case("dp", x="24 6", y="24", w="6")
@typed_shard_map
def sgd(x: X, y: Float[Array, "[b/dp]"], w: W) -> tuple[S, W]:
    def loss(w):
        return lax.pmean(jnp.mean((x @ w - y) ** 2), "dp")

    value, gradient = jax.value_and_grad(loss)(w)
    return value, w - 0.1 * gradient
    # return lax.pmean(jnp.mean((x @ w - y) ** 2), "dp") => return jnp.mean((x @ w - y) ** 2)
    # lax.pmean(jnp => lax.psum(jnp
    # gradient = jax.value_and_grad(loss)(w) => gradient = lax.psum(jax.value_and_grad(loss)(w), "dp")
    # 0.1 * gradient => 0.1 * lax.psum(gradient, "dp")


@case("dp", x="24 6", y="24", w="6")
def sgd_plain(x, y, w):
    def step(x, y, w):
        def loss(w):
            return jnp.mean((x @ w - y) ** 2)

        value, gradient = jax.value_and_grad(loss)(w)
        return lax.pmean(value, "dp"), w - 0.1 * lax.pmean(gradient, "dp")
        # w - 0.1 * lax.pmean(gradient, "dp") => w - 0.1 * gradient
        # 0.1 * lax.pmean => 0.1 * lax.psum
        # jnp.mean((x @ w - y) ** 2) => lax.psum(jnp.mean((x @ w - y) ** 2), "dp")
        # lax.pmean(value, "dp"), w => lax.psum(value, "dp"), w
        # jnp.mean((x @ w - y) ** 2) => jnp.sum((x @ w - y) ** 2)

    specs = P("dp"), P("dp"), P()
    return jax.shard_map(step, in_specs=specs, out_specs=P(), check_vma=False)(x, y, w)


@case("dp", x="24 6", w="6 4", v="4")
@typed_shard_map
def adam(x: X, w: Float[Array, "m f"], v: Float[Array, "f"]) -> tuple[Float[Array, "m f"], Float[Array, "f"], S]:
    params = {"w": w, "v": v}

    def loss(params):
        h = jnp.tanh(x @ params["w"]) @ params["v"]
        return lax.pmean(jnp.mean(h**2), "dp")

    gradients = jax.grad(loss)(params)
    norm = jnp.sqrt(sum(jnp.sum(g**2) for g in jax.tree.leaves(gradients)))
    gradients = jax.tree.map(lambda g: g * jnp.minimum(1.0, 0.5 / norm), gradients)
    mu = jax.tree.map(lambda g: 0.1 * g, gradients)
    nu = jax.tree.map(lambda g: 0.01 * g**2, gradients)
    new = jax.tree.map(lambda p, m, n: p - 0.01 * m / (jnp.sqrt(n) + 1e-3), params, mu, nu)
    return new["w"], new["v"], norm
    # return lax.pmean(jnp.mean(h**2), "dp") => return jnp.mean(h**2)
    # norm = jnp.sqrt(sum(jnp.sum(g**2) for g in jax.tree.leaves(gradients))) => norm = jnp.sqrt(lax.psum(sum(jnp.sum(g**2) for g in jax.tree.leaves(gradients)), "dp"))
    # lax.pmean(jnp.mean(h**2), "dp") => lax.psum(jnp.mean(h**2), "dp")


@case("dp tp", x="12 12", up="12 24", down="24 6", scale="12")
@typed_shard_map
def fsdp_step(
    x: X, up: Float[Array, "[m/dp] [f/tp]"], down: Float[Array, "[f/tp] [o/dp]"], scale: Float[Array, "m"]
) -> tuple[S, Float[Array, "[m/dp] [f/tp]"], Float[Array, "[f/tp] [o/dp]"], Float[Array, "m"], S]:
    def loss(params):
        up, down, scale = params
        whole_up = ts.all_gather(up, "[m/dp] [f/tp] -> m [f/tp] ~dp")
        whole_down = ts.all_gather(down, "[f/tp] [o/dp] -> [f/tp] o ~dp")
        h = jax.nn.silu((x * scale) @ whole_up)
        y = lax.psum(h @ whole_down, "tp")
        return lax.pmean(jnp.mean(y**2), "dp")

    value, (gu, gd, gs) = jax.value_and_grad(loss)((up, down, scale))
    square = lax.psum(jnp.sum(gu**2) + jnp.sum(gd**2), ("dp", "tp")) + jnp.sum(gs**2)
    factor = jnp.minimum(1.0, 0.5 / jnp.sqrt(square))
    return value, up - factor * gu, down - factor * gd, scale - factor * gs, jnp.sqrt(square)
    # lax.psum(h @ whole_down, "tp") => h @ whole_down
    # return lax.pmean(jnp.mean(y**2), "dp") => return lax.psum(jnp.mean(y**2), "dp")
    # lax.psum(jnp.sum(gu**2) + jnp.sum(gd**2), ("dp", "tp")) + jnp.sum(gs**2) => jnp.sum(gu**2) + jnp.sum(gd**2) + jnp.sum(gs**2)
    # lax.psum(jnp.sum(gu**2) + jnp.sum(gd**2), ("dp", "tp")) + jnp.sum(gs**2) => lax.psum(jnp.sum(gu**2) + jnp.sum(gd**2) + jnp.sum(gs**2), ("dp", "tp"))
    # jnp.sum(gd**2), ("dp", "tp")) => jnp.sum(gd**2), "tp")
    # y = lax.psum(h @ whole_down, "tp") => y = lax.pmean(h @ whole_down, "tp")
    # return lax.pmean(jnp.mean(y**2), "dp") => return jnp.mean(y**2)


@case("dp", x="24 6", w="12 6", b="12")
def fsdp_plain(x, w, b):
    def step(x, w, b):
        def loss(w, b):
            whole = lax.all_gather(w, "dp", tiled=True)
            return jnp.mean(jax.nn.relu(x @ whole.T + b) ** 2)

        n = lax.axis_size("dp")
        value, (gw, gb) = jax.value_and_grad(loss, argnums=(0, 1))(w, b)
        return lax.pmean(value, "dp"), w - gw / n, b - lax.pmean(gb, "dp")
        # w - gw / n => w - gw
        # b - lax.pmean(gb, "dp") => b - gb
        # w - gw / n => w - lax.pmean(gw, "dp")
        # b - lax.pmean(gb, "dp") => b - lax.psum(gb, "dp")
        # lax.pmean(value, "dp"), w => value, w

    specs = P("dp"), P("dp"), P()
    out = P(), P("dp"), P()
    return jax.shard_map(step, in_specs=specs, out_specs=out, check_vma=False)(x, w, b)


@case("dp", x="24 6", w="6")
@typed_shard_map
def accumulate(x: X, w: W) -> W:
    def micro(total, batch):
        g = jax.grad(lambda w: lax.pmean(jnp.mean((batch @ w) ** 2), "dp"))(w)
        return total + g, None

    batches = x.reshape(2, -1, x.shape[1])
    total, _ = lax.scan(micro, jnp.zeros_like(w), batches)
    return w - 0.1 * total / batches.shape[0]
    # lax.pmean(jnp.mean((batch @ w) ** 2), "dp") => jnp.mean((batch @ w) ** 2)
    # 0.1 * total / batches.shape[0] => 0.1 * lax.psum(total, "dp") / batches.shape[0]
    # lax.pmean(jnp => lax.psum(jnp


@case("dp", x="24 6", w="6")
def accumulate_plain(x, w):
    def step(x, w):
        def micro(total, batch):
            g = jax.grad(lambda w: jnp.mean((batch @ w) ** 2))(w)
            return total + g, None

        batches = x.reshape(2, -1, 6)
        total, _ = lax.scan(micro, jnp.zeros_like(w), batches)
        g = lax.pmean(total, "dp") / 2
        return w - 0.1 * g
        # g = lax.pmean(total, "dp") / 2 => g = total / 2
        # g = lax.pmean(total, "dp") / 2 => g = lax.psum(total, "dp") / 2
        # total + g => total + lax.psum(g, "dp")

    return jax.shard_map(step, in_specs=(P("dp"), P()), out_specs=P(), check_vma=False)(x, w)


@case("dp tp", h="12 8", table="24 8", labels="int24 12")
@typed_shard_map
def smoothed(h: X, table: Float[Array, "[v/tp] m"], labels: Int[Array, "[b/dp]"]) -> tuple[S, Float[Array, "[v/tp] m"]]:
    def loss(table):
        logits = h @ table.T
        top = lax.pmax(lax.stop_gradient(logits.max(-1)), "tp")
        lse = jnp.log(lax.psum(jnp.exp(logits - top[:, None]).sum(-1), "tp")) + top
        at = labels[:, None] - lax.axis_index("tp") * table.shape[0]
        label = lax.psum(jnp.sum(logits * (at == jnp.arange(table.shape[0])), -1), "tp")
        uniform = lax.pmean(logits.mean(-1), "tp")
        nll = lse - 0.9 * label - 0.1 * uniform + 1e-2 * lse**2
        return lax.pmean(nll.mean(), "dp")

    value, gradient = jax.value_and_grad(loss)(table)
    return value, table - gradient
    # uniform = lax.pmean(logits.mean(-1), "tp") => uniform = logits.mean(-1)
    # uniform = lax.pmean => uniform = lax.psum
    # lax.psum(jnp.sum(logits * (at == jnp.arange(table.shape[0])), -1), "tp") => jnp.sum(logits * (at == jnp.arange(table.shape[0])), -1)
    # nll = lse - 0.9 * label - 0.1 * uniform + 1e-2 * lse**2 => nll = lax.psum(lse - 0.9 * label - 0.1 * uniform + 1e-2 * lse**2, "tp")
    # return lax.pmean(nll => return lax.psum(nll
    # jnp.log(lax.psum(jnp.exp(logits - top[:, None]).sum(-1), "tp")) => lax.psum(jnp.log(jnp.exp(logits - top[:, None]).sum(-1)), "tp")


@case("dp", x="24 6", w="6")
@typed_shard_map
def l2(x: X, w: W) -> tuple[S, W]:
    def loss(w):
        fit = lax.psum(jnp.sum((x @ w) ** 2), "dp") / 24
        return fit + 0.05 * jnp.sum(w**2)

    value, gradient = jax.value_and_grad(loss)(w)
    return value, w - 0.1 * gradient
    # fit + 0.05 * jnp.sum(w**2) => fit + 0.05 * lax.psum(jnp.sum(w**2), "dp")
    # lax.psum(jnp.sum((x @ w) ** 2), "dp") / 24 => lax.psum(jnp.sum((x @ w) ** 2) / 24 + 0.1 * jnp.sum(w**2), "dp")
    # lax.psum(jnp.sum((x @ w) ** 2), "dp") / 24 => jnp.sum((x @ w) ** 2) / 24
    # / 24 => / x.shape[0]


@case("dp", x="24 6", w="6")
def l2_plain(x, w):
    def step(x, w):
        def loss(w):
            return jnp.sum((x @ w) ** 2) / 24 + 0.05 * jnp.sum(w**2) / lax.axis_size("dp")

        g = lax.psum(jax.grad(loss)(w), "dp")
        return w - 0.1 * g
        # jnp.sum(w**2) / lax.axis_size("dp") => jnp.sum(w**2)
        # g = lax.psum(jax.grad(loss)(w), "dp") => g = jax.grad(loss)(w)
        # g = lax.psum => g = lax.pmean
        # / 24 => / x.shape[0]

    return jax.shard_map(step, in_specs=(P("dp"), P()), out_specs=P(), check_vma=False)(x, w)


@case("dp", x="24 6", router="6 4", experts="4 6 6")
@typed_shard_map
def mixture(
    x: X, router: Float[Array, "m e"], experts: Float[Array, "e m m"]
) -> tuple[S, Float[Array, "m e"], Float[Array, "e m m"]]:
    def loss(router, experts):
        probabilities = jax.nn.softmax(x @ router)
        chosen = jax.nn.one_hot(probabilities.argmax(-1), 4)
        y = jnp.einsum("bm,emn,be->bn", x, experts, chosen * probabilities)
        fraction = lax.pmean(chosen.mean(0), "dp")
        mean = lax.pmean(probabilities.mean(0), "dp")
        aux = 4 * jnp.sum(fraction * mean)
        return lax.pmean(jnp.mean(y**2), "dp") + 0.1 * aux

    value, (gr, ge) = jax.value_and_grad(loss, argnums=(0, 1))(router, experts)
    return value, router - gr, experts - ge
    # aux = 4 * jnp.sum(fraction * mean) => aux = lax.pmean(4 * jnp.sum(chosen.mean(0) * probabilities.mean(0)), "dp")
    # fraction = lax.pmean => fraction = lax.psum
    # mean = lax.pmean(probabilities.mean(0), "dp") => mean = probabilities.mean(0)
    # 0.1 * aux => 0.1 * lax.psum(aux, "dp")
    # return lax.pmean(jnp.mean(y**2), "dp") => return lax.psum(jnp.mean(y**2), "dp")


@case("ep", x="24 6", w="12 6 6", expert="int12 24")
@typed_shard_map(check_vma=False)
def expert_parallel(
    x: Float[Array, "b m"], w: Float[Array, "[e/ep] m m"], expert: Int[Array, "b"]
) -> Float[Array, "b m"]:
    own = lax.axis_index("ep") * w.shape[0] + jnp.arange(w.shape[0])
    gate = (expert[:, None] == own).astype(x.dtype)
    y = jnp.einsum("bm,emn,be->bn", x, w, gate)
    return x + jax.nn.gelu(lax.psum(y, "ep"))
    # jax.nn.gelu(lax.psum(y, "ep")) => lax.psum(jax.nn.gelu(y), "ep")
    # jax.nn.gelu(lax.psum(y, "ep")) => jax.nn.gelu(y)
    # lax.axis_index("ep") * w.shape[0] + => 0 +
    # x + jax.nn.gelu(lax.psum(y, "ep")) => lax.psum(x + y, "ep")


@case("dp", x="24 6", w="6 6", ema="6", seed="key")
def dropout(x, w, ema, seed):
    def step(x, w, ema, seed):
        n = x.shape[0] * lax.axis_size("dp")
        whole = jax.random.bernoulli(seed, 0.8, (n, 6))
        keep = lax.dynamic_slice_in_dim(whole, lax.axis_index("dp") * x.shape[0], x.shape[0])
        h = jnp.where(keep, x @ w, 0) / 0.8
        return h, 0.99 * ema + 0.01 * lax.pmean(h.mean(0), "dp")
        # keep = lax.dynamic_slice_in_dim(whole, lax.axis_index("dp") * x.shape[0], x.shape[0]) => keep = jax.random.bernoulli(seed, 0.8, x.shape)
        # lax.axis_index("dp") * x.shape[0], x => 0, x
        # 0.01 * lax.pmean(h.mean(0), "dp") => 0.01 * h.mean(0)
        # 0.01 * lax.pmean => 0.01 * lax.psum
        # 0.99 * ema + 0.01 * lax.pmean(h.mean(0), "dp") => lax.pmean(0.99 * ema + 0.01 * h.sum(0), "dp")

    return jax.shard_map(step, in_specs=(P("dp"), P(), P(), P()), out_specs=(P("dp"), P()), check_vma=False)(
        x, w, ema, seed
    )


@case("dp", x="24 6", w="6", keys="keys 24")
@typed_shard_map
def diffusion(x: X, w: W, keys: Key[Array, "[b/dp]"]) -> W:
    noise = jax.vmap(lambda key: jax.random.normal(key, (6,)))(keys)

    def loss(w):
        predicted = (x + noise) * w
        return lax.pmean(jnp.mean((predicted - noise) ** 2), "dp")

    return w - 0.1 * jax.grad(loss)(w)
    # lax.pmean(jnp => lax.psum(jnp
    # lax.pmean(jnp.mean((predicted - noise) ** 2), "dp") => jnp.mean((predicted - noise) ** 2)
    # jax.vmap(lambda key: jax.random.normal(key, (6,)))(keys) => jax.random.normal(lax.all_gather(keys, "dp", tiled=True)[0], x.shape)


@case("tp", x="6 12", w="12 6")
@typed_shard_map
def lamb(x: Float[Array, "b [m/tp]"], w: Float[Array, "[m/tp] f"]) -> Float[Array, "[m/tp] f"]:
    g = jax.grad(lambda w: jnp.mean(lax.psum(x @ w, "tp") ** 2))(w)
    update = g + 0.01 * w
    ratio = jnp.sqrt(lax.psum(jnp.sum(w**2), "tp") / lax.psum(jnp.sum(update**2), "tp"))
    return w - 0.1 * ratio * update
    # lax.psum(jnp.sum(w**2), "tp") / lax.psum(jnp.sum(update**2), "tp") => jnp.sum(w**2) / jnp.sum(update**2)
    # lax.psum(jnp.sum(w**2), "tp") / => jnp.sum(w**2) /
    # lax.psum(x @ w, "tp") ** 2 => (x @ w) ** 2
    # lax.psum(x @ w, "tp") ** 2 => lax.psum((x @ w) ** 2, "tp")
    # jnp.sqrt(lax.psum(jnp.sum(w**2), "tp") / lax.psum(jnp.sum(update**2), "tp")) => jnp.sqrt(lax.psum(jnp.sum(w**2), "tp")) / lax.psum(jnp.sqrt(jnp.sum(update**2)), "tp")


@case("tp", w="12 6", g="12 6")
def shampoo(w, g):
    def precondition(w, g):
        right = lax.psum(g.T @ g, "tp") + 1e-2 * jnp.eye(6)
        return w - 0.1 * jnp.linalg.solve(right, g.T).T
        # lax.psum(g.T @ g, "tp") => g.T @ g
        # lax.psum(g.T @ g, "tp") + 1e-2 * jnp.eye(6) => lax.psum(g.T @ g + 1e-2 * jnp.eye(6), "tp")
        # lax.psum(g.T @ g, "tp") => lax.pmean(g.T @ g, "tp")

    return jax.shard_map(precondition, in_specs=P("tp"), out_specs=P("tp"), check_vma=False)(w, g)


@case("dp", x="24 6", w="6 6", v="6")
def gradient_penalty(x, w, v):
    def step(x, w, v):
        def critic(x, v):
            return jnp.tanh(x @ w) @ v

        def loss(v):
            g = jax.vmap(jax.grad(critic), in_axes=(0, None))(x, v)
            lengths = jnp.sqrt(jnp.sum(g**2, -1) + 1e-6)
            return jnp.mean((lengths - 1) ** 2) - jnp.mean(critic(x, v))

        value, g = lax.pmean(jax.value_and_grad(loss)(v), "dp")
        return value, v - 0.1 * g
        # value, g = lax.pmean(jax.value_and_grad(loss)(v), "dp") => value, g = lax.psum(jax.value_and_grad(loss)(v), "dp")
        # value, g = lax.pmean(jax.value_and_grad(loss)(v), "dp") => value, g = jax.value_and_grad(loss)(v)
        # v - 0.1 * g => v - 0.1 * lax.psum(g, "dp")

    return jax.shard_map(step, in_specs=(P("dp"), P(), P()), out_specs=P(), check_vma=False)(x, w, v)


@case("tp", x="4 6", w1="6 12", w2="12 6")
def megatron(x, w1, w2):
    @jax.custom_vjp
    def copy(x):
        return x

    copy.defvjp(lambda x: (x, None), lambda _, g: (lax.psum(g, "tp"),))

    @jax.custom_vjp
    def reduce(x):
        return lax.psum(x, "tp")

    reduce.defvjp(lambda x: (lax.psum(x, "tp"), None), lambda _, g: (g,))

    def step(x, w1, w2):
        def loss(x, w1, w2):
            h = jax.nn.gelu(copy(x) @ w1)
            return jnp.mean(reduce(h @ w2) ** 2)

        value, (gx, g1, g2) = jax.value_and_grad(loss, argnums=(0, 1, 2))(x, w1, w2)
        return value, gx, w1 - g1, w2 - g2
        # copy(x) @ w1 => x @ w1
        # reduce(h @ w2) => lax.psum(h @ w2, "tp")
        # return value, gx, => return value, lax.psum(gx, "tp"),
        # reduce(h @ w2) => (h @ w2)

    specs = P(), P(None, "tp"), P("tp")
    out = P(), P(), P(None, "tp"), P("tp")
    return jax.shard_map(step, in_specs=specs, out_specs=out, check_vma=False)(x, w1, w2)


@case("dp tp", x="12 12", ups="2 12 24", downs="2 24 12", head="12")
@typed_shard_map
def deep_step(
    x: X, ups: Float[Array, "l [m/dp] [f/tp]"], downs: Float[Array, "l [f/tp] m"], head: Float[Array, "m"]
) -> tuple[S, Float[Array, "l [m/dp] [f/tp]"], Float[Array, "l [f/tp] m"], Float[Array, "m"]]:
    def loss(params):
        ups, downs, head = params

        @jax.checkpoint
        def layer(h, w):
            up = ts.all_gather(w[0], "[m/dp] [f/tp] -> m [f/tp] ~dp")
            y = jax.nn.relu(h @ up) @ w[1]
            return h + lax.psum(y, "tp"), None

        h, _ = lax.scan(layer, x, (ups, downs))
        return lax.pmean(jnp.mean((h @ head) ** 2), "dp")

    value, gradients = jax.value_and_grad(loss)((ups, downs, head))
    gu, gd, gh = gradients
    square = lax.psum(jnp.sum(gu**2), ("dp", "tp")) + lax.psum(jnp.sum(gd**2), "tp") + jnp.sum(gh**2)
    scale = 1 / (1 + jnp.sqrt(square))
    return value, ups - scale * gu, downs - scale * gd, head - scale * gh
    # lax.psum(jnp.sum(gd**2), "tp") => jnp.sum(gd**2)
    # lax.psum(jnp.sum(gd**2), "tp") => lax.psum(jnp.sum(gd**2), ("dp", "tp"))
    # h + lax.psum(y, "tp") => lax.psum(h + y, "tp")
    # return lax.pmean(jnp => return lax.psum(jnp
    # h + lax.psum(y, "tp") => h + y
    # return lax.pmean(jnp.mean((h @ head) ** 2), "dp") => return jnp.mean((h @ head) ** 2)
    # 1 + jnp.sqrt(square) => 1 + lax.psum(jnp.sqrt(square), "dp")


@case("dp", x="24 6", mask="bool 24", w="6")
@typed_shard_map
def masked_loss(x: X, mask: Bool[Array, "[b/dp]"], w: W) -> tuple[S, W]:
    def loss(w):
        nll = jax.nn.softplus(x @ w)
        return lax.psum(jnp.sum(nll * mask), "dp") / lax.psum(jnp.sum(mask), "dp")

    value, g = jax.value_and_grad(loss)(w)
    return value, w - g
    # lax.psum(jnp.sum(nll * mask), "dp") / lax.psum(jnp.sum(mask), "dp") => lax.psum(jnp.sum(nll * mask), "dp") / jnp.sum(mask)
    # lax.psum(jnp.sum(nll * mask), "dp") / lax.psum(jnp.sum(mask), "dp") => lax.pmean(jnp.sum(nll * mask) / jnp.sum(mask), "dp")
    # lax.psum(jnp.sum(nll * mask), "dp") / => jnp.sum(nll * mask) /
    # lax.psum(jnp.sum(nll * mask), "dp") / lax.psum(jnp.sum(mask), "dp") => jnp.sum(nll * mask) / jnp.sum(mask)
    # lax.psum(jnp.sum(mask), "dp") => lax.pmean(jnp.sum(mask), "dp")


@case("tp", w="12 6", g="12 6")
@typed_shard_map
def adafactor(w: Float[Array, "[m/tp] f"], g: Float[Array, "[m/tp] f"]) -> Float[Array, "[m/tp] f"]:
    row = jnp.mean(g**2, axis=1)
    column = lax.pmean(jnp.mean(g**2, axis=0), "tp")
    mean = lax.pmean(jnp.mean(row), "tp")
    return w - 0.1 * g * lax.rsqrt(row[:, None] * column / mean)
    # column = lax.pmean(jnp.mean(g**2, axis=0), "tp") => column = jnp.mean(g**2, axis=0)
    # mean = lax.pmean(jnp.mean(row), "tp") => mean = jnp.mean(row)
    # mean = lax.pmean => mean = lax.psum
    # column = lax.pmean => column = lax.psum


@case("dp tp", x="12 8", w="8 12", v="12")
def two_axes(x, w, v):
    def step(x, w, v):
        def loss(w, v):
            h = jnp.tanh(x @ w)
            y = lax.psum(h @ v, "tp")
            return lax.psum(jnp.sum(y**2), "dp") / 12

        value, (gw, gv) = jax.value_and_grad(loss, argnums=(0, 1))(w, v)
        return value, w - gw, v - gv
        # lax.psum(jnp.sum(y**2), "dp") / 12 => lax.psum(jnp.sum(y**2), ("dp", "tp")) / 12
        # y = lax.psum(h @ v, "tp") => y = lax.psum(h @ v, ("dp", "tp"))
        # lax.psum(jnp.sum(y**2), "dp") / 12 => jnp.sum(y**2) / 12
        # y = lax.psum(h @ v, "tp") => y = h @ v

    specs = P("dp"), P(None, "tp"), P("tp")
    return jax.shard_map(step, in_specs=specs, out_specs=(P(), P(None, "tp"), P("tp")))(x, w, v)
