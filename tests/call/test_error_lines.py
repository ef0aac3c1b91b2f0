"""The user's line that an error names: of what is wrong in a body, of a call, of a hint."""

import dataclasses
import os
import sys
from collections.abc import Callable
from types import ModuleType, SimpleNamespace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from beartype import beartype
from jax.sharding import Mesh
from lines import place

from typedshmap import Array, Float, TypedShmapError, check, einsum, size, typed, typed_jit, typed_shard_map
from typedshmap.errors.places import Place, is_users

X, W = Float[Array, "[b/dp] [m/tp]"], Float[Array, "[m/tp] f"]
x, w = np.ones((8, 4), np.float32), np.ones((4, 6), np.float32)


def line_of(call: Callable[[], Any]) -> str | None:
    """The line that our error names."""
    with pytest.raises(TypedShmapError) as caught:
        call()
    return next((line[4:] for line in str(caught.value).splitlines() if line.startswith("At: ")), None)


# Bodies


@typed
def kept(y: Float[Array, "[b/dp] d"]) -> Float[Array, "[b/dp] d"]:
    return y


def forgotten_sum(x: X, w: W) -> Float[Array, "[b/dp] f"]:
    y = x @ w  # here
    return y


def forgotten_sum_that_is_checked(x: X, w: W) -> Float[Array, "[b/dp] f"]:
    y = x @ w
    return check(y, "[b/dp] f")  # here


def another_size(x: X, w: W) -> Float[Array, "[b/dp] 5"]:
    x = x[:, :1]  # here
    return x


def an_argument_as_it_is(x: X, w: W) -> Float[Array, "[b/dp] 5"]:
    if size("f") == 3:
        w = w + 1
    return x  # here


def a_list(x: X, w: W) -> X:
    y = [x + 1]
    return y  # here


def one_of_several(x: X, w: W) -> tuple[X, Float[Array, "[b/dp] 3"]]:
    z = w * 2  # here
    return x + 1, z


def an_argument_of_a_helper(x: X, w: W) -> X:
    x = x + 1
    return kept(x[0])  # here


def a_call_of_a_helper(x: X, w: W) -> X:
    return kept(x, w)  # here


@typed
def halved(y: Float[Array, "[b/dp] d"]) -> Float[Array, "[b/dp] d"]:
    z = y[:1]  # here
    return z


def a_result_of_a_helper(x: X, w: W) -> X:
    return halved(jax.lax.all_gather(x, "tp", axis=1, tiled=True))


def a_helper_that_beartype_checks(x: X, w: W) -> X:
    return beartype(kept)(x[0])  # here


class Layer:
    def __call__(self, x: X, w: W) -> Float[Array, "[b/dp] 3"]:
        return x * 2  # here


def a_size(x: X, w: W) -> X:
    return x * size("heads")  # here


def a_pattern(x: X, w: W) -> X:
    return einsum(x, w, "[b/dp] m, n f -> [b/dp] f")  # here


def a_pattern_that_cannot_be_read(x: X, w: W) -> X:
    return einsum(x, w, "[b/dp m, m f -> [b/dp] f")  # here


def a_hint_that_cannot_be_read(x: X, w: W) -> X:
    return check(x, "b!dp")  # here


BODIES = [
    *(forgotten_sum, forgotten_sum_that_is_checked, another_size, an_argument_as_it_is, a_list, one_of_several),
    *(an_argument_of_a_helper, a_call_of_a_helper, a_result_of_a_helper, a_helper_that_beartype_checks, a_size),
    *(a_pattern, a_pattern_that_cannot_be_read, a_hint_that_cannot_be_read, Layer().__call__),
]


@pytest.mark.parametrize("check_vma", [True, False])
@pytest.mark.parametrize("body", BODIES, ids=lambda body: body.__name__)
def test_an_error_of_a_body_names_the_line(body: Callable[..., Any], check_vma: bool, mesh: Mesh) -> None:
    step = typed_shard_map(body, mesh=mesh, check_vma=check_vma)
    expected = place(halved if body is a_result_of_a_helper else body)
    assert line_of(lambda: jax.eval_shape(lambda x, w: step(x, w), x, w)) == expected


def test_a_line_in_a_loop_is_named(mesh: Mesh) -> None:
    def a_claim_in_a_loop(x: X) -> X:
        return jax.lax.scan(lambda carry, _: (check(carry, "b m"), None), x, None, length=2)[0]  # here

    line = place(a_claim_in_a_loop).replace("a_claim_in_a_loop", "<lambda>")
    assert line_of(lambda: jax.eval_shape(typed_shard_map(a_claim_in_a_loop, mesh=mesh), x)) == line


def test_the_result_of_a_compiled_function_names_the_line(mesh: Mesh) -> None:
    @typed_jit(mesh=mesh)
    def last(x: X) -> X:
        y = x[:, :1]  # here
        return y + 0 if len(y.shape) > 2 else y

    assert line_of(lambda: last(x)) == place(last)


AROUND: list[Callable[..., Any]] = [
    lambda f: f(x, w),
    lambda f: jax.jit(f)(x, w),
    lambda f: jax.grad(lambda x: f(x, w).sum())(x),
    lambda f: jax.vmap(f)(x[None], w[None]),
    lambda f: jax.eval_shape(jax.checkpoint(f), x, w),
]


@pytest.mark.parametrize("check_vma", [True, False])
@pytest.mark.parametrize("call", AROUND, ids=["at once", "jit", "grad", "vmap", "checkpoint"])
def test_the_line_is_the_same_under_every_transformation(call: Callable[..., Any], check_vma: bool, mesh: Mesh) -> None:
    step = typed_shard_map(forgotten_sum, mesh=mesh, check_vma=check_vma)
    assert line_of(lambda: call(step)) == place(forgotten_sum)


@pytest.mark.parametrize("check_vma", [True, False])
@pytest.mark.parametrize("around", [lambda f: f, jax.jit, jax.checkpoint], ids=["at once", "jit", "checkpoint"])
def test_in_a_backward_rule_it_is_the_line_of_the_rules_body(around: Any, check_vma: bool, mesh: Mesh) -> None:
    @jax.custom_vjp
    def f(x: Any) -> Any:
        return 2 * x

    def backward(_: Any, g: Any) -> Any:
        typed_shard_map(forgotten_sum, mesh=mesh, check_vma=check_vma)(x, w)
        return (g,)

    f.defvjp(lambda x: (2 * x, None), backward)
    assert line_of(lambda: around(jax.grad(around(lambda x: f(x).sum())))(x)) == place(forgotten_sum, "# here")


# Calls


def test_an_argument_of_a_traced_call_names_the_call_and_of_another_the_traceback_does(mesh: Mesh) -> None:
    step = typed_shard_map(forgotten_sum, mesh=mesh)

    def train(x: Any) -> Any:
        return step(x + 1, x)  # here

    assert line_of(lambda: jax.eval_shape(train, x)) == place(train)
    assert line_of(lambda: jax.jit(train)(x)) == place(train)
    assert line_of(lambda: step(x, x)) is None


# Decorations


def a_hint(mesh: Mesh) -> None:
    @typed_shard_map(mesh=mesh)
    def f(
        x: X,
        y: Float[Array, "b!dp"],
    ) -> X:
        return x


def a_quoted_hint(mesh: Mesh) -> None:
    @typed_shard_map(mesh=mesh)
    def f(
        x: X,
        y: "Float[Array, 'b!dp']",
    ) -> X:
        return x


def a_result_without_a_hint(mesh: Mesh) -> None:
    @typed_shard_map(mesh=mesh)
    def f(
        x: X,
    ): ...


def a_parameter_without_a_hint(mesh: Mesh) -> None:
    @typed_shard_map(mesh=mesh)
    @beartype
    def f(y, x: X) -> X: ...


def what_is_no_hint(mesh: Mesh) -> None:
    @typed
    def f(
        x: X,
    ) -> 3: ...


def given_hints(mesh: Mesh) -> None:
    def f(x): ...

    typed_shard_map(
        f, mesh=mesh, in_types=("b!dp",), out_types=X
    )  # fmt: skip


def aliases(mesh: Mesh) -> None:
    @typed_shard_map(mesh=mesh, axes="dp")  # type: ignore[arg-type]
    def f(x: X) -> X: ...


def options(mesh: Mesh) -> None:
    @typed_jit(mesh=mesh, static_argnames="z")
    def f(x: X) -> X: ...


DECORATIONS = [
    (a_hint, 4, "a_hint"),
    (a_quoted_hint, 4, "f"),
    (a_result_without_a_hint, 2, "f"),
    (a_parameter_without_a_hint, 3, "f"),
    (what_is_no_hint, 4, "f"),
    (given_hints, 3, "given_hints"),
    (aliases, 1, "aliases"),
    (options, 1, "options"),
]


@pytest.mark.parametrize(("decorate", "line", "name"), DECORATIONS, ids=lambda value: getattr(value, "__name__", ""))
def test_an_error_of_decoration_names_the_hint_or_the_def(decorate: Any, line: int, name: str, mesh: Mesh) -> None:
    first = decorate.__code__.co_firstlineno
    assert line_of(lambda: decorate(mesh)) == f"test_error_lines.py:{first + line} ({name})"


def test_a_hint_that_cannot_be_read_names_its_own_line() -> None:
    def hints() -> None:
        Float[Array, "b d"]
        Float[Array, "b/dp"]  # here

    assert line_of(hints) == place(hints)


def test_a_function_without_source_names_the_line_of_its_code(mesh: Mesh) -> None:
    code = compile("\n\ndef f(x: 3): return x", "made.py", "exec")
    namespace: dict[str, Any] = {}
    exec(code, namespace)
    assert line_of(lambda: typed(namespace["f"])) == "made.py:3 (f)"


# Files


@pytest.mark.parametrize(
    ("file", "is_own"),
    [
        (__file__, True),
        ("<stdin>", True),
        ("<string>", True),
        ("<ipython-input-3-0123>", True),
        ("/tmp/ipykernel_12/345.py", True),
        (jax.__file__, False),
        (pytest.__file__, False),
        (jnp.__file__, False),
        (dataclasses.__file__, False),
        ("<frozen importlib._bootstrap>", False),
        ("<@beartype(a.f) at 0x1>", False),
    ],
)
def test_frames_of_libraries_are_not_the_users(file: str, is_own: bool) -> None:
    assert is_users(file) is is_own


def test_cells_of_a_notebook_are_named_as_the_notebook_does(monkeypatch: pytest.MonkeyPatch) -> None:
    cell = "/tmp/ipykernel_12/345.py"
    assert Place.of("<ipython-input-3-0123>", 2, "<module>") == "In[3]:2 (<module>)"
    assert Place.of(cell, 2, "step") == "cell:2 (step)"
    names = SimpleNamespace(format_code_name=lambda file: ("Cell", "In[4]") if file == cell else None)
    ipython: Any = ModuleType("IPython")
    ipython.get_ipython = lambda: SimpleNamespace(compile=names)
    monkeypatch.setitem(sys.modules, "IPython", ipython)
    assert Place.of(cell, 2, "step") == "In[4]:2 (step)"
    assert Place.of("/home/a/train.py", 2, "Model.step") == "train.py:2 (Model.step)"
    assert Place.of("/home/a/model/__init__.py", 2, "step") == os.path.join("model", "__init__.py") + ":2 (step)"


# Several mistakes


@pytest.mark.parametrize("check_vma", [True, False])
def test_all_contradictions_of_a_body_are_collected_the_first_first(check_vma: bool, mesh: Mesh) -> None:
    @typed_shard_map(mesh=mesh, check_vma=check_vma)
    def swapped(x: Float[Array, "[n/dp,tp] k"]) -> Float[Array, "[n/tp,dp] k"]:
        check(x * 2, "[n/tp,dp] k")  # here
        return x

    with pytest.raises(TypedShmapError) as caught:
        jax.eval_shape(swapped, x)
    first, *_, also = str(caught.value).splitlines()
    assert first == (
        "swapped: checked value is sharded over 'dp', 'tp' in dim 0, but its hint says sharded over 'tp', 'dp'"
    )
    assert also == "Also: return value is sharded over 'dp', 'tp' in dim 0, but its hint says sharded over 'tp', 'dp'"
    assert f"At: {place(swapped)}" in str(caught.value)
    assert [str(failure.subject) for failure in caught.value.failures] == ["checked", "return"]


@pytest.mark.parametrize("check_vma", [True, False])
def test_what_has_the_cause_of_the_first_mistake_is_told_once(check_vma: bool, mesh: Mesh) -> None:
    @typed_shard_map(mesh=mesh, check_vma=check_vma)
    def forgotten(x: X, w: W) -> tuple[Float[Array, "[b/dp] f"], Float[Array, "[b/dp] f"]]:
        y = x @ w
        check(y, "[b/dp] f")  # here
        return y, y * 2

    with pytest.raises(TypedShmapError) as caught:
        jax.eval_shape(forgotten, x, w)
    assert "Also:" not in str(caught.value)
    assert f"At: {place(forgotten)}" in str(caught.value)
    assert len(caught.value.failures) == 3
