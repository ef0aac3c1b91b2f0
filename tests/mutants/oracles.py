"""What the right programs compute, in NumPy or in plain JAX on one device."""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np


def stepped(weights: Any, gradients: Any, rate: float) -> Any:
    return jax.tree.map(lambda w, g: w - rate * g, weights, gradients)


def step_by_hand(weights: Any, x: Any, y: Any) -> Any:
    errors = x @ weights.w + weights.b - y
    gradients = type(weights)(x.T @ errors * 2 / len(x), errors.sum(0) * 2 / len(x))
    return stepped(weights, gradients, 0.1 * len(x) / 8), (errors**2).sum() / len(x)


def step(weights: Any, x: Any, y: Any, key: Any) -> Any:
    x = (x - x.mean(0)) / np.sqrt(x.var(0) + 1e-3)
    mask = jax.random.bernoulli(key, 0.75, x.shape)
    return step_by_hand(weights, x * mask / 0.75, y)


def forward(x: Any, w: Any) -> Any:
    h = jax.nn.gelu(x @ w.up + w.up_bias)
    h = h / jnp.sqrt(jnp.mean(h**2, axis=1, keepdims=True) + 1e-3)
    return x + h @ w.down + w.down_bias


def loss_and_gradients(w: Any, x: Any, y: Any) -> Any:
    return jax.value_and_grad(lambda w: jnp.mean((forward(x, w) - y) ** 2))(w)


def at_rest(x: Any, up: Any, down: Any) -> Any:
    return np.maximum(np.maximum(x @ up, 0) @ down, 0)


def attention(q: Any, k: Any, v: Any) -> Any:
    scores = np.einsum("bqd,bkd->bqk", q, k) / np.sqrt(q.shape[-1])
    weights = np.exp(np.where(np.tri(q.shape[1], dtype=bool), scores, -np.inf))
    return weights @ v / weights.sum(-1, keepdims=True)


def layer(x: Any, router: Any, w: Any, scale: Any) -> Any:
    """Token after token."""
    gates = np.asarray(jax.nn.softmax(x @ router))
    expert, capacity = gates.argmax(1), len(x) // len(w) + 1
    out, load = np.array(x), np.zeros(len(w), np.int32)
    for i, e in enumerate(expert):
        if load[e] < capacity:
            load[e] += 1
            out[i] += gates[i, e] * np.tanh(x[i] @ w[e]) * scale[e]
    share = np.bincount(expert, minlength=len(w)) / len(x)
    return out, len(w) * (share * gates.mean(0)).sum(), load


def token_losses(logits: Any, labels: Any) -> Any:
    return -jax.nn.log_softmax(logits)[np.arange(len(labels)), labels]


def cross_entropy(logits: Any, labels: Any, weights: Any) -> Any:
    total = jax.nn.logsumexp(logits, 1)
    soft = 0.9 * token_losses(logits, labels) + 0.1 * (total - logits.mean(1))
    guess = logits.argmax(1).astype(np.int32)
    return ((soft + 0.01 * total**2) * weights).sum() / weights.sum(), (guess == labels).mean(), guess


def pipeline(w: Any, b: Any, x: Any) -> Any:
    for each, bias in zip(w, b, strict=True):
        x = np.tanh(x @ each + bias)
    return x


def heat(start: Any, row: Any) -> Any:
    t = start
    for _ in range(3):
        p = np.pad(t, 1, constant_values=1.0)
        up, down, left, right = p[:-2, 1:-1], p[2:, 1:-1], p[1:-1, :-2], p[1:-1, 2:]
        t = t + 0.1 * (up + down + left + right - 4 * t) + (left - t) / t.shape[1]
        t = t + 0.1 * (np.arange(len(t)) == row)[:, None]
    return t - t.mean(), np.sqrt(((t - start) ** 2).sum()), t.max()


def spectrum(x: Any) -> Any:
    whole = np.fft.fft(x.ravel())
    power = np.where(np.arange(x.size) / x.size < 0.23, np.abs(whole) ** 2, 0)
    laid_out = [each.reshape(x.shape[::-1]).T for each in (whole, power)]
    return laid_out[0].astype(np.complex64), (x**2).sum(), laid_out[1].ravel()


def accumulated(w: Any, x: Any, y: Any) -> Any:
    x, y = x[:, :-2].reshape(-1, len(w)), y[:, :-2].ravel()
    errors = x @ w - y
    return (errors**2).mean(), 2 * x.T @ errors / len(x)


def solved(b: Any) -> Any:
    x, steps, residual = b, 0, 1.0
    while residual > 1e-2 and steps < 50:
        new = b + x.mean() / 2
        x, steps, residual = new, steps + 1, np.abs(new - x).max() * np.abs(b).max()
    return x, np.int32(steps)


def quantised(x: Any, w: Any) -> Any:
    scale = np.abs(w).max() / np.float32(448)
    return x @ np.asarray(jnp.asarray(w / scale).astype(jnp.float8_e4m3fn).astype(jnp.float32)) * scale


def mean_size(x: Any) -> Any:
    largest, taken = np.abs(x).max(), x[x[:, 0] > 0]
    return np.asarray(jnp.abs(jnp.asarray(taken / largest)).astype(jnp.bfloat16).astype(jnp.float32)).mean(0) * largest


def loaded(table: Any, key: Any) -> Any:
    rows = table[np.asarray(jax.random.permutation(key, len(table)))]
    return rows - rows.mean(0)


def restored(w: Any) -> Any:
    return w


def noised(x: Any, key: Any) -> Any:
    for_rows, for_all = jax.random.split(key)
    scale = jax.random.normal(for_all, x.shape[1:])
    noise = [jax.random.normal(jax.random.fold_in(for_rows, at), x.shape[1:]) for at in range(len(x))]
    return x + scale * np.stack(noise), scale


ORACLES: dict[str, Callable[..., Any]] = {
    each.__name__: each
    for each in (
        step, step_by_hand, forward, at_rest, loss_and_gradients, attention, layer, cross_entropy, token_losses,
        pipeline, heat, spectrum, accumulated, solved, quantised, mean_size, loaded, restored, noised,
    )
}  # fmt: skip
ORACLES["by_hand"] = loss_and_gradients
