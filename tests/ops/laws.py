"""What the laws share: a random operation with what NumPy makes of the global arrays, and programs that run many.

Compiling is what costs, so that one program holds a whole list of operations.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import permutations
from typing import Any

import jax
import numpy as np
from expecting import mesh_of
from hypothesis import HealthCheck, Phase, settings
from hypothesis import strategies as st
from verdicts import without_cures

from typedshmap import Array, Shaped, psum, typed_shard_map

Parts = tuple[tuple[str, ...], ...]
Sizes = Mapping[str, int]

# A failure names its case; to shrink a list of them takes minutes of compiling.
EXAMPLES = settings(
    phases=[Phase.generate],
    deadline=None,
    derandomize=True,
    max_examples=max(2, settings.default.max_examples // 10),
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
)

MODES = st.sampled_from(("outside", "outside, unchecked", "inside"))
"""Where the gradient is taken: outside of the region, with check_vma and without, or in its body."""


@dataclass(frozen=True)
class Given:
    """An argument: a global array, and per dim its mesh axes, major to minor."""

    array: np.ndarray = field(repr=False)
    parts: Parts

    @property
    def hint(self) -> Any:
        return hint_of(self.parts)

    @property
    def is_real(self) -> bool:
        return bool(np.issubdtype(self.array.dtype, np.floating))


def hint_of(parts: Parts) -> Any:
    """The hint of an array that is sharded so, of any size."""
    return Shaped[Array, " ".join(f"[_/{','.join(axes)}]" if axes else "_" for axes in parts)]


@dataclass(frozen=True)
class Step:
    """One call: of which values (the arguments, then the results of the steps before), and with what."""

    verb: Callable[..., Any]
    takes: tuple[int, ...]
    arguments: tuple[Any, ...] = ()
    options: Mapping[str, Any] = field(default_factory=dict)

    def __str__(self) -> str:
        values = [f"v{at}" for at in self.takes]
        options = [f"{name}={value!r}" for name, value in self.options.items()]
        return f"{self.verb.__name__}({', '.join([*values, *map(repr, self.arguments), *options])})"


@dataclass(frozen=True)
class Case:
    """A random operation, and what it should give.

    Attributes:
      given: the arguments.
      steps: the operation, and what is needed to bring its result out of the region.
      parts: how the result is sharded.
      value: the global result.
      weights: of the sum of the result's elements that is differentiated.
      gradients: of that sum with respect to each argument; None where there is none.
      tolerance: relative; 0 where all numbers are small integers, and every sum of them exact.
    """

    given: tuple[Given, ...]
    steps: tuple[Step, ...]
    parts: Parts
    value: np.ndarray = field(repr=False)
    weights: np.ndarray = field(repr=False)
    gradients: tuple[np.ndarray | None, ...] = field(repr=False, default=())
    tolerance: float = 0

    def __str__(self) -> str:
        arguments = (f"{given.array.dtype}{list(given.array.shape)}: {given.hint.__name__}" for given in self.given)
        return f"({', '.join(arguments)}) {'; '.join(map(str, self.steps))}"

    def _repr_pretty_(self, printer: Any, cycle: bool) -> None:
        """What hypothesis prints of it."""
        printer.text(str(self))

    def run(self, shards: Sequence[Any]) -> Any:
        values = list(shards)
        try:
            for step in self.steps:
                values.append(step.verb(*(values[at] for at in step.takes), *step.arguments, **step.options))
        except Exception as error:
            error.add_note(f"The case: {self}")
            raise
        return values[-1]


def run_all(cases: Sequence[Case], shards: Sequence[Any]) -> list[Any]:
    """The results of all cases; each takes its arguments from the list of all."""
    remaining = iter(shards)
    return [case.run([next(remaining) for _ in case.given]) for case in cases]


def _given(cases: Sequence[Case]) -> list[Given]:
    return [given for case in cases for given in case.given]


def aliases(sizes: Sizes) -> dict[str, tuple[str, ...]]:
    """A name for every order of several mesh axes: ``dp_tp``."""
    orders = (order for count in range(2, len(sizes) + 1) for order in permutations(sizes, count))
    return {"_".join(order): order for order in orders}


def mapped(sizes: Sizes, cases: Sequence[Case], check_vma: bool = True) -> Callable[..., tuple[Any, ...]]:
    """One region that runs all cases."""

    def body(*shards: Any) -> tuple[Any, ...]:
        return tuple(run_all(cases, shards))

    return typed_shard_map(
        body,
        mesh=mesh_of(*sizes.values(), names=tuple(sizes)),
        check_vma=check_vma,
        axes=aliases(sizes),
        in_types=tuple(given.hint for given in _given(cases)),
        out_types=tuple[tuple(hint_of(case.parts) for case in cases)],
    )


def computed(function: Callable[..., Any], *args: Any) -> Any:
    """Compile in haste, and run."""
    with without_cures():
        lowered = jax.jit(function).lower(*args)
    program = lowered.compile({"xla_backend_optimization_level": "0"})
    return jax.block_until_ready(program(*args))


def values_of(sizes: Sizes, cases: Sequence[Case], check_vma: bool = True) -> tuple[Any, ...]:
    """The results, without any gradient."""
    return computed(mapped(sizes, cases, check_vma), *(given.array for given in _given(cases)))


def differentiated(sizes: Sizes, cases: Sequence[Case], mode: str) -> tuple[Sequence[Any], list[Any]]:
    """The results, and the gradients with respect to all arguments (None for integers)."""
    given = _given(cases)
    real = [at for at, argument in enumerate(given) if argument.is_real]
    arrays, weights = [argument.array for argument in given], [case.weights for case in cases]
    if mode == "inside":
        values, found = computed(_inside(sizes, cases, real), *arrays, *weights)
    else:
        (_, values), found = computed(_outside(sizes, cases, real, mode == "outside"), arrays, weights)
    gradients: list[Any] = [None] * len(given)
    for at, gradient in zip(real, found, strict=True):
        gradients[at] = gradient
    return values, gradients


def _replaced(values: Sequence[Any], places: Sequence[int], others: Sequence[Any]) -> list[Any]:
    other = dict(zip(places, others, strict=True))
    return [other.get(at, value) for at, value in enumerate(values)]


def _outside(sizes: Sizes, cases: Sequence[Case], real: list[int], check_vma: bool) -> Callable[..., Any]:
    function = mapped(sizes, cases, check_vma)

    def program(arrays: list[Any], weights: list[Any]) -> Any:
        def loss(some: list[Any]) -> Any:
            values = function(*_replaced(arrays, real, some))
            return sum((w * value).sum() for w, value in zip(weights, values, strict=True)), values

        return jax.value_and_grad(loss, has_aux=True)([arrays[at] for at in real])

    return program


def _inside(sizes: Sizes, cases: Sequence[Case], real: list[int]) -> Callable[..., Any]:
    """A region whose body differentiates a loss that ends in a sum over the mesh axes."""
    given = _given(cases)
    hints = tuple(argument.hint for argument in given)
    results = tuple(hint_of(case.parts) for case in cases)

    def body(*shards: Any) -> Any:
        arrays, weights = shards[: len(given)], shards[len(given) :]

        def loss(some: list[Any]) -> Any:
            values = run_all(cases, _replaced(arrays, real, some))
            terms = zip(cases, weights, values, strict=True)
            return sum(_total(case.parts, (w * value).sum()) for case, w, value in terms), values

        (_, values), gradients = jax.value_and_grad(loss, has_aux=True)([arrays[at] for at in real])
        return tuple(values), tuple(gradients)

    out_types = tuple[tuple[results], tuple[tuple(hints[at] for at in real)]]
    in_types = (*hints, *results)
    mesh = mesh_of(*sizes.values(), names=tuple(sizes))
    return typed_shard_map(body, mesh=mesh, axes=aliases(sizes), in_types=in_types, out_types=out_types)


def _total(parts: Parts, addend: Any) -> Any:
    axes = tuple(axis for part in parts for axis in part)
    return psum(addend, axes) if axes else addend


def compare_values(cases: Sequence[Case], values: Sequence[Any]) -> None:
    """Expect the global results."""
    for case, value in zip(cases, values, strict=True):
        _compare(value, case.value, case.tolerance, f"value of {case}")


def compare_gradients(cases: Sequence[Case], gradients: Sequence[Any], mode: str) -> None:
    """Expect the global gradients; without check_vma JAX divides them by the sizes of mesh axes, a third is rounded."""
    least = 1e-5 if mode == "outside, unchecked" else 0
    remaining = iter(gradients)
    for case in cases:
        for at, expected in enumerate(case.gradients):
            gradient = next(remaining)
            if expected is not None:
                _compare(gradient, expected, max(case.tolerance, least), f"gradient {at} of {case}")


def _compare(got: Any, expected: np.ndarray, tolerance: float, what: str) -> None:
    assert got.shape == expected.shape, f"{what}: {got.shape}, not {expected.shape}"
    if tolerance:
        np.testing.assert_allclose(got, expected, rtol=tolerance, atol=tolerance, err_msg=what)
    else:
        np.testing.assert_array_equal(got, expected, err_msg=what)


def check(sizes: Sizes, cases: Sequence[Case], mode: str) -> None:
    """Expect the global values and gradients of all cases."""
    values, gradients = differentiated(sizes, cases, mode)
    compare_values(cases, values)
    compare_gradients(cases, gradients, mode)


def check_values(sizes: Sizes, cases: Sequence[Case], check_vma: bool) -> None:
    """Expect the global values of all cases, where there are no gradients."""
    compare_values(cases, values_of(sizes, cases, check_vma))
