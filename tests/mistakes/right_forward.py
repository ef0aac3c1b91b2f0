"""Right programs that are differentiated from outside, with mistakes that may be made in them."""

# ruff: noqa: E501

import jax
import jax.numpy as jnp
from jax import lax
from jax.sharding import PartitionSpec as P
from mistaken import case

import typedshmap as ts
from typedshmap import Array, Bool, Float, Int, typed, typed_shard_map

X = Float[Array, "[b/dp] m"]
S = Float[Array, ""]


@case("dp tp", x="12 8", up="8 24", down="24 8", b="8")
@typed_shard_map
def mlp(x: X, up: Float[Array, "m [f/tp]"], down: Float[Array, "[f/tp] m"], b: Float[Array, "m"]) -> X:
    h = jax.nn.gelu(x @ up)
    return lax.psum(h @ down, "tp") + b + x
    # lax.psum(h @ down, "tp") + b + x => h @ down + b + x
    # lax.psum(h @ down, "tp") + b => lax.psum(h @ down + b, "tp")
    # lax.psum(h @ down, "tp") => lax.psum(h @ down, "dp")
    # b + x => lax.psum(b + x, "tp")


@case("dp tp", x="12 8", up="8 24", down="24 8", b="8")
def mlp_plain(x, up, down, b):
    def block(x, up, down, b):
        h = jax.nn.relu(x @ up)
        y = lax.psum(h @ down, "tp")
        return x + y + b
        # lax.psum(h @ down, "tp") => lax.psum(h @ down + x, "tp") - x
        # lax.psum(h @ down, "tp") => lax.pmean(h @ down, "tp")
        # lax.psum(h @ down, "tp") => lax.psum(h @ down + b, "tp")
        # lax.psum(h @ down, "tp") => lax.psum(lax.psum(h @ down, "tp"), "tp")
        # jax.nn.relu(x @ up) => lax.psum(jax.nn.relu(x @ up), "tp")

    specs = P("dp"), P(None, "tp"), P("tp"), P()
    return jax.shard_map(block, in_specs=specs, out_specs=P("dp"), check_vma=False)(x, up, down, b)


@case("dp tp", x="12 6 8", wqkv="3 8 12 4", wo="12 4 8")
@typed_shard_map(check_vma=False)
def attention(
    x: Float[Array, "[b/dp] s m"], wqkv: Float[Array, "3 m [h/tp] d"], wo: Float[Array, "[h/tp] d m"]
) -> Float[Array, "[b/dp] s m"]:
    q, k, v = jnp.einsum("bsm,cmhd->cbshd", x, wqkv)
    scores = jnp.einsum("bqhd,bkhd->bhqk", q, k) / jnp.sqrt(q.shape[-1])
    o = jnp.einsum("bhqk,bkhd->bqhd", jax.nn.softmax(scores, axis=-1), v)
    y = jnp.einsum("bshd,hdm->bsm", o, wo)
    return x + lax.psum(y, "tp")
    # x + lax.psum(y, "tp") => lax.psum(x + y, "tp")
    # lax.psum(y, "tp") => lax.pmean(y, "tp")
    # axis=-1 => axis=1
    # wo) => lax.psum(wo, "tp"))
    # lax.psum(y, "tp") => y


@case("dp tp", x="12 8", ups="3 8 12", downs="3 12 8")
@typed_shard_map
def layers(x: X, ups: Float[Array, "l m [f/tp]"], downs: Float[Array, "l [f/tp] m"]) -> X:
    @jax.checkpoint
    def layer(x, w):
        up, down = w
        h = jnp.tanh(jnp.einsum("bm,mf->bf", x, up))
        y = jnp.einsum("bf,fm->bm", h, down)
        return x + lax.psum(y, "tp"), None

    return lax.scan(layer, x, (ups, downs))[0]
    # x + lax.psum(y, "tp") => lax.psum(x + y, "tp")
    # lax.psum(y, "tp") => y
    # lax.psum(y, "tp") => lax.pmean(y, "tp")
    # jnp.tanh(jnp.einsum("bm,mf->bf", x, up)) => lax.psum(jnp.tanh(jnp.einsum("bm,mf->bf", x, up)), "tp")


@case("dp tp", x="12 24", g="24")
def layer_norm(x, g):
    def norm(x, g):
        mean = lax.pmean(jnp.mean(x, axis=-1, keepdims=True), "tp")
        var = lax.pmean(jnp.mean((x - mean) ** 2, axis=-1, keepdims=True), "tp")
        return (x - mean) * lax.rsqrt(var + 1e-5) * g
        # lax.pmean(jnp.mean(x, axis=-1, keepdims=True), "tp") => jnp.mean(x, axis=-1, keepdims=True)
        # lax.pmean(jnp.mean((x - mean) ** 2, axis=-1, keepdims=True), "tp") => jnp.mean((x - mean) ** 2, axis=-1, keepdims=True)
        # var = lax.pmean => var = lax.psum
        # mean = lax.pmean => mean = lax.psum

    return jax.shard_map(norm, in_specs=(P("dp", "tp"), P("tp")), out_specs=P("dp", "tp"))(x, g)


@case("dp tp", x="12 24", g="24")
@typed_shard_map
def rms_norm(x: Float[Array, "[b/dp] [m/tp]"], g: Float[Array, "[m/tp]"]) -> Float[Array, "[b/dp] [m/tp]"]:
    square = lax.pmean(jnp.mean(jnp.square(x), axis=-1), "tp")
    return x * lax.rsqrt(square + 1e-6)[:, None] * g
    # lax.pmean(jnp.mean(jnp.square(x), axis=-1), "tp") => jnp.mean(jnp.square(x), axis=-1)
    # lax.pmean(jnp.mean(jnp.square(x), axis=-1), "tp") => lax.psum(jnp.mean(jnp.square(x), axis=-1), "tp")
    # "tp") => "dp")
    # lax.rsqrt(square + 1e-6) => lax.psum(lax.rsqrt(square + 1e-6), "tp")


@case("dp", x="12 6", scale="6", shift="6", mean="6")
def batch_norm(x, scale, shift, mean):
    def norm(x, scale, shift, mean):
        n = x.shape[0] * lax.axis_size("dp")
        mu = lax.psum(x.sum(0), "dp") / n
        var = lax.psum(jnp.sum(x**2, 0), "dp") / n - mu**2
        y = (x - mu) / jnp.sqrt(var + 1e-5) * scale + shift
        return y, 0.9 * mean + 0.1 * mu
        # n = x.shape[0] * lax.axis_size("dp") => n = x.shape[0]
        # lax.psum(x.sum(0), "dp") => x.sum(0)
        # lax.psum(jnp.sum(x**2, 0), "dp") => jnp.sum(x**2, 0) * lax.axis_size("dp")
        # lax.psum(x.sum(0), "dp") => lax.pmean(x.sum(0), "dp")
        # - mu**2 => - jnp.mean(x, 0)**2

    out = P("dp"), P()
    return jax.shard_map(norm, in_specs=(P("dp"), P(), P(), P()), out_specs=out, check_vma=False)(x, scale, shift, mean)


@case("dp tp", x="12 24")
@typed_shard_map(check_vma=False)
def softmax_sharded(x: Float[Array, "[b/dp] [v/tp]"]) -> Float[Array, "[b/dp] [v/tp]"]:
    top = lax.pmax(lax.stop_gradient(x.max(-1, keepdims=True)), "tp")
    e = jnp.exp(x - top)
    z = lax.psum(e.sum(-1, keepdims=True), "tp")
    return e / z
    # lax.psum(e.sum(-1, keepdims=True), "tp") => e.sum(-1, keepdims=True)
    # lax.pmax(lax.stop_gradient(x.max(-1, keepdims=True)), "tp") => lax.stop_gradient(x.max(-1, keepdims=True))
    # lax.psum(e.sum(-1, keepdims=True), "tp") => lax.pmean(e.sum(-1, keepdims=True), "tp")


@case("dp tp", h="12 8", table="24 8", labels="int24 12")
@typed_shard_map
def vocabulary_loss(h: X, table: Float[Array, "[v/tp] m"], labels: Int[Array, "[b/dp]"]) -> S:
    logits = h @ table.T
    top = lax.pmax(lax.stop_gradient(logits.max(-1)), "tp")
    z = lax.psum(jnp.exp(logits - top[:, None]).sum(-1), "tp")
    at = labels - lax.axis_index("tp") * table.shape[0]
    is_here = (at >= 0) & (at < table.shape[0])
    picked = jnp.take_along_axis(logits, jnp.clip(at, 0, table.shape[0] - 1)[:, None], 1)[:, 0]
    label = lax.psum(jnp.where(is_here, picked, 0.0), "tp")
    return lax.pmean(jnp.mean(jnp.log(z) + top - label), "dp")
    # lax.psum(jnp.where(is_here, picked, 0.0), "tp") => jnp.where(is_here, picked, 0.0)
    # lax.psum(jnp.exp(logits - top[:, None]).sum(-1), "tp") => jnp.exp(logits - top[:, None]).sum(-1)
    # lax.pmax(lax.stop_gradient(logits.max(-1)), "tp") => lax.stop_gradient(logits.max(-1))
    # lax.pmean(jnp.mean(jnp.log(z) + top - label), "dp") => jnp.mean(jnp.log(z) + top - label)
    # lax.pmean(jnp => lax.psum(jnp
    # jnp.log(z) + top - label => lax.psum(jnp.log(z) + top - label, "tp")
    # jnp.where(is_here, picked, 0.0) => picked


@case("dp tp", ids="int24 12 4", table="24 8", pos="4 8")
@typed_shard_map(check_vma=False)
def embed(
    ids: Int[Array, "[b/dp] s"], table: Float[Array, "[v/tp] m"], pos: Float[Array, "s m"]
) -> Float[Array, "[b/dp] s m"]:
    own = ids - lax.axis_index("tp") * table.shape[0]
    is_here = (own >= 0) & (own < table.shape[0])
    rows = jnp.where(is_here[..., None], table[jnp.where(is_here, own, 0)], 0)
    return lax.psum(rows, "tp") + pos
    # jnp.where(is_here[..., None], table[jnp.where(is_here, own, 0)], 0) => table[jnp.where(is_here, own, 0)]
    # lax.psum(rows, "tp") + pos => lax.psum(rows + pos, "tp")
    # lax.psum(rows, "tp") => rows
    # lax.psum(rows, "tp") => lax.pmean(rows, "tp")


@case("tp", x="3 12 8", up="8 24", down="24 8")
@typed_shard_map
def sequence_parallel(
    x: Float[Array, "b [s/tp] m"], up: Float[Array, "m [f/tp]"], down: Float[Array, "[f/tp] m"]
) -> Float[Array, "b [s/tp] m"]:
    whole = lax.all_gather(x, "tp", axis=1, tiled=True)
    h = jax.nn.silu(whole @ up)
    return x + lax.psum_scatter(h @ down, "tp", scatter_dimension=1, tiled=True)
    # lax.psum_scatter(h @ down, "tp", scatter_dimension=1, tiled=True) => lax.psum((jax.nn.silu(x @ up)) @ down, "tp")
    # h @ down, => h @ down / lax.axis_size("tp"),
    # h @ down, => lax.psum(h @ down, "tp"),


@case("sp", q="2 12 4", k="2 12 4", v="2 12 4")
def ring_attention(q, k, v):
    def attend(q, k, v):
        n = lax.axis_size("sp")
        m = jnp.full(q.shape[:2], -1e30)
        z, o = jnp.zeros(q.shape[:2]), jnp.zeros(q.shape)
        for _ in range(n):
            s = jnp.einsum("bqd,bkd->bqk", q, k)
            new = jnp.maximum(m, s.max(-1))
            p = jnp.exp(s - new[..., None])
            z = z * jnp.exp(m - new) + p.sum(-1)
            o = o * jnp.exp(m - new)[..., None] + jnp.einsum("bqk,bkd->bqd", p, v)
            m = new
            perm = [(i, (i + 1) % n) for i in range(n)]
            k, v = lax.ppermute((k, v), "sp", perm)
        return o / z[..., None]
        # for _ in range(n) => for _ in range(n - 1 or 1)
        # k, v = lax.ppermute((k, v), "sp", perm) => k = lax.ppermute(k, "sp", perm)

    spec = P(None, "sp")
    return jax.shard_map(attend, in_specs=(spec,) * 3, out_specs=spec, check_vma=False)(q, k, v)


@case("sp", x="2 12", w="3")
def halo(x, w):
    def convolve(x, w):
        n = lax.axis_size("sp")
        left = lax.ppermute(x[:, -1:], "sp", [(i, i + 1) for i in range(n - 1)])
        right = lax.ppermute(x[:, :1], "sp", [(i + 1, i) for i in range(n - 1)])
        padded = jnp.concatenate([left, x, right], axis=1)
        return w[0] * padded[:, :-2] + w[1] * padded[:, 1:-1] + w[2] * padded[:, 2:]
        # [left, x, right] => [jnp.zeros_like(left), x, jnp.zeros_like(right)]
        # [left, x, right] => [right, x, left]

    return jax.shard_map(convolve, in_specs=(P(None, "sp"), P()), out_specs=P(None, "sp"))(x, w)


@case("sp", x="2 12")
@typed_shard_map
def prefix_sum(x: Float[Array, "b [s/sp]"]) -> Float[Array, "b [s/sp]"]:
    totals = lax.all_gather(x.sum(1), "sp")
    before = jnp.arange(lax.axis_size("sp")) < lax.axis_index("sp")
    return jnp.cumsum(x, axis=1) + jnp.sum(totals * before[:, None], 0)[:, None]
    # jnp.cumsum(x, axis=1) + jnp.sum(totals * before[:, None], 0)[:, None] => jnp.cumsum(x, axis=1)
    # < lax.axis_index => <= lax.axis_index


@case("dp", a="12 8", b="12 8")
@typed_shard_map
def contrastive(a: X, b: X) -> S:
    a = a / jnp.linalg.norm(a, axis=-1, keepdims=True)
    b = b / jnp.linalg.norm(b, axis=-1, keepdims=True)
    others = lax.all_gather(b, "dp", tiled=True)
    logits = a @ others.T / 0.1
    label = jnp.arange(a.shape[0]) + lax.axis_index("dp") * a.shape[0]
    right = jnp.take_along_axis(logits, label[:, None], 1)[:, 0]
    return lax.pmean(jnp.mean(jax.nn.logsumexp(logits, -1) - right), "dp")
    # others = lax.all_gather(b, "dp", tiled=True) => others = b
    # + lax.axis_index("dp") * a.shape[0] => + 0
    # lax.pmean => lax.psum
    # jnp.mean(jax => jnp.sum(jax


@case("dp", x="24 6")
def covariance(x):
    def whiten(x):
        n = x.shape[0] * lax.axis_size("dp")
        mu = lax.psum(x.sum(0), "dp") / n
        cov = lax.psum((x - mu).T @ (x - mu), "dp") / (n - 1)
        return (x - mu) @ jnp.linalg.inv(jnp.linalg.cholesky(cov + 0.1 * jnp.eye(6)))
        # / (n - 1) => / (x.shape[0] - 1)
        # lax.psum((x - mu).T @ (x - mu), "dp") => (x - mu).T @ (x - mu)
        # mu = lax.psum(x.sum(0), "dp") / n => mu = x.mean(0)
        # cov + 0.1 * jnp.eye(6) => lax.psum(cov + 0.1 * jnp.eye(6), "dp")

    return jax.shard_map(whiten, in_specs=P("dp"), out_specs=P("dp"))(x)


@case("dp", x="24 4", y="24")
def ridge(x, y):
    def solve(x, y):
        gram = lax.psum(x.T @ x, "dp") + 0.1 * jnp.eye(4)
        moment = lax.psum(x.T @ y, "dp")
        return jnp.linalg.solve(gram, moment)
        # lax.psum(x.T @ y, "dp") => x.T @ y
        # lax.psum(x.T @ x, "dp") + 0.1 * jnp.eye(4) => lax.psum(x.T @ x + 0.1 * jnp.eye(4), "dp")
        # moment = lax.psum => moment = lax.pmean

    return jax.shard_map(solve, in_specs=(P("dp"), P("dp")), out_specs=P(), check_vma=False)(x, y)


@case("dp", src="int8 24", dst="int8 24", h="8 5", w="5 5")
@typed_shard_map
def graph(
    src: Int[Array, "[e/dp]"], dst: Int[Array, "[e/dp]"], h: Float[Array, "v d"], w: Float[Array, "d d"]
) -> Float[Array, "v d"]:
    messages = jax.ops.segment_sum(h[src] @ w, dst, num_segments=h.shape[0])
    degree = jax.ops.segment_sum(jnp.ones(dst.shape), dst, num_segments=h.shape[0])
    return h + jax.nn.relu(lax.psum(messages, "dp")) / (1 + lax.psum(degree, "dp"))[:, None]
    # jax.nn.relu(lax.psum(messages, "dp")) => lax.psum(jax.nn.relu(messages), "dp")
    # (1 + lax.psum(degree, "dp")) => lax.psum(1 + degree, "dp")
    # lax.psum(degree, "dp") => degree
    # h + jax.nn.relu(lax.psum(messages, "dp")) => jax.nn.relu(lax.psum(h + messages, "dp"))


@case("dp", x="24 6", v="6")
def power_iteration(x, v):
    def iterate(x, v):
        def step(v, _):
            v = lax.psum(x.T @ (x @ v), "dp")
            return v / jnp.linalg.norm(v), None

        return lax.scan(step, v, length=4)[0]
        # lax.psum(x.T @ (x @ v), "dp") => x.T @ (x @ v)
        # v / jnp.linalg.norm(v) => lax.psum(v / jnp.linalg.norm(v), "dp")
        # lax.psum(x.T @ (x @ v), "dp") => x.T @ lax.psum(x @ v, "dp")
        # lax.psum(x.T @ (x @ v), "dp") => lax.psum(x.T @ (x @ v) + 0.1 * v, "dp")

    return jax.shard_map(iterate, in_specs=(P("dp"), P()), out_specs=P(), check_vma=False)(x, v)


@case("dp", adv="24", ratio="24")
@typed_shard_map
def ppo(adv: Float[Array, "[b/dp]"], ratio: Float[Array, "[b/dp]"]) -> S:
    mu = lax.pmean(adv.mean(), "dp")
    std = jnp.sqrt(lax.pmean(jnp.mean((adv - mu) ** 2), "dp"))
    a = (adv - mu) / (std + 1e-8)
    return -lax.pmean(jnp.mean(jnp.minimum(ratio * a, jnp.clip(ratio, 0.8, 1.2) * a)), "dp")
    # jnp.sqrt(lax.pmean(jnp.mean((adv - mu) ** 2), "dp")) => lax.pmean(jnp.sqrt(jnp.mean((adv - mu) ** 2)), "dp")
    # mu = lax.pmean(adv.mean(), "dp") => mu = adv.mean()
    # std = jnp.sqrt(lax.pmean(jnp.mean((adv - mu) ** 2), "dp")) => std = adv.std()
    # -lax.pmean => -lax.psum


@case("dp", x="24 6")
def logsumexp_rows(x):
    def merge(x):
        m = x.max(0)
        s = jnp.exp(x - m).sum(0)
        top = lax.pmax(m, "dp")
        return top + jnp.log(lax.psum(s * jnp.exp(m - top), "dp"))
        # s * jnp.exp(m - top) => s
        # jnp.log(lax.psum(s * jnp.exp(m - top), "dp")) => lax.psum(jnp.log(s * jnp.exp(m - top)), "dp")
        # lax.psum(s * jnp.exp(m - top), "dp") => s * jnp.exp(m - top)
        # top + jnp.log => m + jnp.log

    return jax.shard_map(merge, in_specs=P("dp"), out_specs=P())(x)


@case("dp", logits="24 5", labels="int5 24", mask="bool 24")
@typed_shard_map(check_vma=False)
def metrics(
    logits: Float[Array, "[b/dp] c"], labels: Int[Array, "[b/dp]"], mask: Bool[Array, "[b/dp]"]
) -> tuple[S, S, S]:
    hit = (logits.argmax(-1) == labels) & mask
    count = lax.psum(mask.sum(), "dp")
    accuracy = lax.psum(hit.sum(), "dp") / count
    nll = -jnp.take_along_axis(jax.nn.log_softmax(logits), labels[:, None], 1)[:, 0]
    loss = lax.psum(jnp.sum(nll * mask), "dp") / count
    return accuracy, loss, jnp.exp(loss)
    # count = lax.psum(mask.sum(), "dp") => count = mask.sum()
    # lax.psum(hit.sum(), "dp") / count => lax.pmean(hit.sum() / mask.sum(), "dp")
    # lax.psum(jnp.sum(nll * mask), "dp") / count => lax.pmean(jnp.sum(nll * mask), "dp") / count
    # jnp.exp(loss) => lax.psum(jnp.exp(loss), "dp")
    # lax.psum(jnp.sum(nll * mask), "dp") / count => jnp.sum(nll * mask) / count
    # lax.psum(hit.sum(), "dp") / count => lax.psum(hit.mean(), "dp")


@case("dp sp", nll="12 24")
@typed_shard_map
def perplexity(nll: Float[Array, "[b/dp] [s/sp]"]) -> S:
    mean = lax.pmean(nll.mean(), ("dp", "sp"))
    return jnp.exp(mean)
    # lax.pmean(nll.mean(), ("dp", "sp")) => lax.pmean(nll.mean(), "dp")
    # lax.pmean(nll.mean(), ("dp", "sp")) => lax.psum(nll.mean(), ("dp", "sp"))
    # jnp.exp(mean) => lax.pmean(jnp.exp(nll.mean()), ("dp", "sp"))
    # nll.mean() => nll.sum()


@case("dp tp", x="12 12", a="12 3", b="3 10", w="12 10")
def lora(x, a, b, w):
    def apply(x, a, b, w):
        base = lax.psum(x @ w, "tp")
        low = lax.psum(x @ a, "tp")
        return base + 2.0 * low @ b
        # low = lax.psum(x @ a, "tp") => low = x @ a
        # base = lax.psum(x @ w, "tp") => base = x @ w
        # base + 2.0 * low @ b => lax.psum(base + 2.0 * low @ b, "tp")
        # base = lax.psum(x @ w, "tp") => base = lax.psum(x @ w, "dp")

    specs = P("dp", "tp"), P("tp"), P(), P("tp")
    return jax.shard_map(apply, in_specs=specs, out_specs=P("dp"), check_vma=False)(x, a, b, w)


@typed
def half(x: Float[Array, "[b/dp] [m/tp]"], w: Float[Array, "[m/tp] f"]) -> Float[Array, "[b/dp] f +tp"]:
    return x @ w


@case("dp tp", x="12 12", w="12 6", b="6")
@typed_shard_map(check_vma=False)
def helper(
    x: Float[Array, "[b/dp] [m/tp]"], w: Float[Array, "[m/tp] f"], b: Float[Array, "f"]
) -> Float[Array, "[b/dp] f"]:
    h = half(x, w)
    y = jax.nn.relu(lax.psum(h, "tp") + b)
    return y * 2
    # lax.psum(h, "tp") + b => lax.psum(h + b, "tp")
    # jax.nn.relu(lax.psum(h, "tp") + b) => jax.nn.relu(h + b)
    # jax.nn.relu(lax.psum(h, "tp") + b) => lax.psum(jax.nn.relu(h), "tp") + b
    # y * 2 => lax.psum(y, "tp") * 2


@case("dp tp", x="12 12", w="12 6")
@typed_shard_map
def operations(x: Float[Array, "[b/dp] [m/tp]"], w: Float[Array, "[m/tp] f"]) -> Float[Array, "[b/dp] f"]:
    h = ts.einsum(x, w, "[b/dp] [m/tp], [m/tp] f -> [b/dp] f +tp")
    y = ts.psum(h, "[b/dp] f +tp -> [b/dp] f")
    return jnp.tanh(y)
    # y = ts.psum(h, "[b/dp] f +tp -> [b/dp] f") => y = h
    # y = ts.psum(h, "[b/dp] f +tp -> [b/dp] f") => y = ts.psum(jnp.tanh(h), "[b/dp] f +tp -> [b/dp] f")


@case("sp", x="2 12 8")
@typed_shard_map
def positions(x: Float[Array, "b [s/sp] d"]) -> Float[Array, "b [s/sp] d"]:
    at = lax.axis_index("sp") * x.shape[1] + jnp.arange(x.shape[1])
    angle = at[:, None] / 10.0 ** jnp.arange(4)
    a, b = jnp.split(x, 2, axis=-1)
    return jnp.concatenate([a * jnp.cos(angle) - b * jnp.sin(angle), a * jnp.sin(angle) + b * jnp.cos(angle)], -1)
    # lax.axis_index("sp") * x.shape[1] + jnp.arange(x.shape[1]) => jnp.arange(x.shape[1])
    # lax.axis_index("sp") * x.shape[1] + => lax.axis_index("sp") +


@case("sp", q="2 12 4", k="2 12 4", v="2 12 4")
@typed_shard_map
def causal(
    q: Float[Array, "b [s/sp] d"], k: Float[Array, "b [s/sp] d"], v: Float[Array, "b [s/sp] d"]
) -> Float[Array, "b [s/sp] d"]:
    keys, values = (lax.all_gather(x, "sp", axis=1, tiled=True) for x in (k, v))
    at = lax.axis_index("sp") * q.shape[1] + jnp.arange(q.shape[1])
    scores = jnp.einsum("bqd,bkd->bqk", q, keys)
    scores = jnp.where(at[:, None] >= jnp.arange(keys.shape[1]), scores, -1e9)
    return jnp.einsum("bqk,bkd->bqd", jax.nn.softmax(scores), values)
    # lax.axis_index("sp") * q.shape[1] + => 0 +
    # axis=1, tiled=True) for => axis=1, tiled=True)[:, ::-1] for


@case("dp", x="24 6", d="6", b="6")
def conjugate_gradient(x, d, b):
    def solve(x, d, b):
        def apply(v):
            return lax.psum(x.T @ (x @ v), "dp") + jnp.exp(d) * v

        def step(state, _):
            v, r, p = state
            ap = apply(p)
            alpha = (r @ r) / (p @ ap)
            new = r - alpha * ap
            return (v + alpha * p, new, new + (new @ new) / (r @ r) * p), None

        return lax.scan(step, (jnp.zeros_like(b), b, b), length=3)[0][0]
        # lax.psum(x.T @ (x @ v), "dp") + jnp.exp(d) * v => lax.psum(x.T @ (x @ v) + jnp.exp(d) * v, "dp")
        # lax.psum(x.T @ (x @ v), "dp") + jnp.exp(d) * v => x.T @ (x @ v) + jnp.exp(d) * v
        # (r @ r) / (p @ ap) => lax.psum(r @ r, "dp") / (p @ ap)
        # lax.psum(x.T @ (x @ v), "dp") => lax.pmean(x.T @ (x @ v), "dp")

    return jax.shard_map(solve, in_specs=(P("dp"), P(), P()), out_specs=P(), check_vma=False)(x, d, b)


@case("dp", x="24 6", w="6")
def evaluate(x, w):
    def run(x, w):
        def add(state, batch):
            total, count = state
            return (total + jnp.sum((batch @ w) ** 2), count + batch.shape[0]), None

        total, count = lax.scan(add, (jnp.zeros(()), jnp.zeros(())), x.reshape(2, -1, 6))[0]
        return lax.psum(total, "dp") / lax.psum(count, "dp")
        # lax.psum(total, "dp") / lax.psum(count, "dp") => lax.psum(total, "dp") / count
        # total + jnp.sum((batch @ w) ** 2), => total + lax.psum(jnp.sum((batch @ w) ** 2), "dp"),
        # lax.psum(total, "dp") / lax.psum(count, "dp") => total / lax.psum(count, "dp")
        # lax.psum(total, "dp") / lax.psum(count, "dp") => lax.psum(total / count, "dp")

    return jax.shard_map(run, in_specs=(P("dp"), P()), out_specs=P(), check_vma=False)(x, w)


@case("dp", x="24 6", w="6 4")
def vmapped_heads(x, w):
    def scores(x, w):
        def head(column):
            z = x @ column
            return lax.psum(jnp.sum(jax.nn.softplus(z)), "dp") / (z.size * lax.axis_size("dp"))

        return jax.vmap(head, in_axes=1)(w)
        # lax.psum(jnp.sum(jax.nn.softplus(z)), "dp") => jnp.sum(jax.nn.softplus(z))
        # (z.size * lax.axis_size("dp")) => z.size
        # lax.psum(jnp.sum(jax.nn.softplus(z)), "dp") => lax.psum(jax.nn.softplus(jnp.sum(z)), "dp")

    return jax.shard_map(scores, in_specs=(P("dp"), P()), out_specs=P())(x, w)


@case("dp tp", x="12 8", w="8 24", v="24 3")
def nested_jit(x, w, v):
    @jax.jit
    def reduce(y):
        return lax.psum(y, "tp")

    @jax.jit
    def project(h, v):
        return reduce(h @ v)

    def body(x, w, v):
        h = jax.nn.relu(x @ w)
        return project(h, v) + project(h**2, v)
        # reduce(h @ v) => h @ v
        # project(h**2, v) => reduce(project(h**2, v))
        # project(h**2, v) => (h**2) @ v
        # lax.psum(y, "tp") => lax.pmean(y, "tp")

    specs = P("dp"), P(None, "tp"), P("tp")
    return jax.shard_map(body, in_specs=specs, out_specs=P("dp"), check_vma=False)(x, w, v)


@case("dp", x="24 4", y="24 3")
@typed_shard_map
def shapes(
    x: Float[Array, "[b/dp] m"], y: Float[Array, "[b/dp] k"]
) -> tuple[Float[Array, "m k"], Float[Array, "[b/dp]"]]:
    cross = lax.psum(x.T @ y, "dp")
    return cross, jnp.sum(x @ cross * y, -1)
    # tuple[Float[Array, "m k"], Float[Array, "[b/dp]"]] => tuple[Float[Array, "[_/dp] k"], Float[Array, "[b/dp]"]]
    # Float[Array, "[b/dp] k"] => Float[Array, "_ k"]
    # cross = lax.psum(x.T @ y, "dp") => cross = x.T @ y
