"""Edits of a text: what each kind writes, that all are Python, and which are tried first."""

import ast
from textwrap import dedent

import pytest

from typedshmap.repairing.edits import Edit, edits_for
from typedshmap.source.module import ParsedModule


def edits_of(text: str, axes: tuple[str, ...] = ("dp", "tp"), line: int = 0, cure: str = "") -> dict[str, Edit]:
    """The edits of a text by what it becomes, in their order."""
    source = ParsedModule(dedent(text))
    return {source.changed(edit.changes): edit for edit in edits_for(source, axes, [line], 0, cure)}


def line_of(body: str, *, imports: str = "import jax\n") -> str:
    return f"{imports}\n\ndef f(x, w):\n    return {body}\n"


@pytest.mark.parametrize(
    ("kind", "before", "after"),
    [
        ("wrap", "x @ w", 'jax.lax.psum(x @ w, "tp")'),
        ("wrap", "x @ w", 'jax.lax.pmean(x @ w, ("dp", "tp"))'),
        ("wrap", "x - x.max(-1)", 'x - jax.lax.pmax(x.max(-1), "tp")'),
        ("gather", "x.var(0)", 'jax.lax.all_gather(x, "dp", tiled=True).var(0)'),
        ("gather", "x.var(0)", 'jax.lax.all_gather(x, "dp", axis=1, tiled=True, to="invarying").var(0)'),
        ("drop", 'jax.lax.psum(x + w, "tp") * 2', "(x + w) * 2"),
        ("drop", 'jax.lax.psum(x, "tp").sum()', "x.sum()"),
        ("drop", 'x / jax.lax.axis_size("dp")', "x"),
        ("replace", 'jax.lax.psum(x, "tp")', 'jax.lax.pmean(x, "tp")'),
        ("axis", 'jax.lax.psum(x, ("dp", "tp"))', 'jax.lax.psum(x, "tp")'),
        ("axis", 'jax.lax.axis_index(("dp", "tp"))', 'jax.lax.axis_index(("tp", "dp"))'),
        ("axis", 'P("dp", None)', 'P(None, "dp")'),
        ("axis", 'jax.lax.all_gather(x, "dp", axis=1)', 'jax.lax.all_gather(x, "dp", axis=0)'),
        ("move", 'jax.lax.psum(x @ w + w, "tp")', 'jax.lax.psum(x @ w, "tp") + w'),
        ("move", '2 * jax.lax.psum(x + w, "tp")', '2 * (jax.lax.psum(x, "tp") + w)'),
        ("move", 'jax.lax.psum(jnp.sqrt(x), "tp")', 'jnp.sqrt(jax.lax.psum(x, "tp"))'),
        ("move", 'jax.lax.pmean(x / w, "dp")', 'jax.lax.psum(x, "dp") / jax.lax.psum(w, "dp")'),
        (
            "move",
            'jax.lax.cond(x[0] > 0, lambda: jax.lax.pmean(x, "dp"), lambda: w)',
            'jax.lax.pmean(jax.lax.cond(x[0] > 0, lambda: x, lambda: w), "dp")',
        ),
        ("size", "x.sum() / len(x)", 'x.sum() / (len(x) * jax.lax.axis_size("dp"))'),
        ("size", "x.sum() / x.shape[0]", 'x.sum() / (x.shape[0] * jax.lax.axis_size("dp"))'),
        ("shift", "(x + 1) % w", "(x - 1) % w"),
        ("shift", 'ppermute(x, "[b/dp]", shift=2)', 'ppermute(x, "[b/dp]", shift=1)'),
        ("offset", "jnp.arange(len(x))", 'jax.lax.axis_index("tp") * len(x) + jnp.arange(len(x))'),
        ("scale", "x.sum()", 'x.sum() / jax.lax.axis_size("tp")'),
        ("pattern", 'rearrange(x, "[a/dp] b -> b [a/dp]")', 'rearrange(x, "[a/tp] b -> b [a/dp]")'),
        ("pattern", 'psum(x, "a ~dp -> a")', 'psum(x, "a -> a")'),
        ("pattern", 'f(x, "k [c/dp,tp] -> [k/dp,tp] c")', 'f(x, "k [c/tp,dp] -> [k/tp,dp] c")'),
        ("types", "shard_map(f, check_vma=False)", "shard_map(f, check_vma=True)"),
    ],
)
def test_what_a_kind_of_edit_writes(kind: str, before: str, after: str) -> None:
    assert edits_of(line_of(before))[line_of(after)].kind == kind


def test_what_chooses_a_branch_is_left_as_it_is() -> None:
    for choosing in ("jax.lax.cond(x.max() > 0, f, g)", "jax.lax.switch(index_of(x), branches)"):
        predicate = choosing.partition("(")[2].partition(",")[0]
        assert edits_of(line_of(choosing))
        assert all(predicate in text for text in edits_of(line_of(choosing)))


def test_a_reduction_that_gives_a_name_to_itself_goes_with_its_line() -> None:
    text = 'import jax\n\ndef f(x):\n    x = jax.lax.psum(x, "dp")\n    return x\n'
    assert "import jax\n\ndef f(x):\n    return x\n" in edits_of(text)


@pytest.mark.parametrize(
    ("imports", "name"),
    [
        ("import jax\n", "jax.lax."),
        ("from jax import lax\n", "lax."),
        ("from jax import lax as l\n", "l."),
        ("import jax.lax as jl\n", "jl."),
        ('"""A module."""\nfrom __future__ import annotations\nimport jax as j\n', "j.lax."),
    ],
)
def test_a_collective_is_written_as_the_module_names_jax(imports: str, name: str) -> None:
    assert line_of(f'{name}psum(x @ w, "tp")', imports=imports) in edits_of(line_of("x @ w", imports=imports))


def test_jax_is_imported_where_the_module_has_it_not() -> None:
    head = '"""A module."""\nfrom __future__ import annotations\n'
    text = line_of("x @ w", imports=f"{head}import numpy as np\n")
    assert line_of('jax.lax.psum(x @ w, "tp")', imports=f"{head}import numpy as np\nimport jax\n") in edits_of(text)


def test_jax_is_imported_below_what_must_run_before_it() -> None:
    head = 'import os\n\nos.environ["XLA_FLAGS"] = "--xla_force_host_platform_device_count=8"\nimport mine\n'
    text = line_of("x @ w", imports=head)
    assert line_of('jax.lax.psum(x @ w, "tp")', imports=f"{head}import jax\n") in edits_of(text)


def test_the_ends_of_lines_stay_as_they_are() -> None:
    source = ParsedModule("import jax\r\ndef f(x):\r\n    return x\r\n")
    edit = next(each for each in edits_for(source, ("dp",), [3], 0, "") if each.code == 'jax.lax.psum(x, "dp")')
    assert source.as_written(source.changed(edit.changes)) == (
        'import jax\r\ndef f(x):\r\n    return jax.lax.psum(x, "dp")\r\n'
    )


def test_sizes_indices_and_modules_are_not_summed() -> None:
    text = """
        import jax
        def f(x):
            count, mine = jax.lax.axis_size("dp"), jax.lax.axis_index("dp")
            return count - mine, x.shape[0] * max(len(x), 2)
        """
    assert not [each for each in edits_of(text).values() if each.kind in ("wrap", "gather")]


def test_columns_are_those_of_the_text_and_not_of_its_bytes() -> None:
    assert 'import jax\ngröße = "ä"; y = jax.lax.psum(x, "dp")\n' in edits_of(
        'import jax\ngröße = "ä"; y = x\n', ("dp",)
    )


@pytest.mark.parametrize("axes", [("dp",), ("dp", "tp"), ("a", "b", "c")])
def test_every_edit_is_python(axes: tuple[str, ...]) -> None:
    text = """
        import jax
        from jax.sharding import PartitionSpec as P
        @typed_shard_map(check_vma=False)
        def f(x: Float[Array, "[batch/dp] model"], w: Tree) -> Float[Array, "[batch/dp] model +tp"]:
            def body(carry, i):
                h = jax.nn.gelu(carry @ w.up + (w.bias if i else -w.bias))
                return jax.lax.psum(h[:, 1:].T @ w.down, "dp") + x.shape[0], f"{h} {x}"
            y, _ = jax.lax.scan(body, x, jnp.arange(3), length=len(x))
            y -= jax.lax.dynamic_slice_in_dim(y, 0, len(x))
            return (y if y.size else [each for each in y if each.any()]), {**w}, lambda a: a * -1
        step = shard_map(f, in_specs=(P("dp", None), P()), out_specs=P("dp"))
        """
    found = edits_of(text, axes)
    assert len(found) > 100
    for each in found:
        ast.parse(each)


def test_edits_of_the_named_line_and_of_the_cure_come_first() -> None:
    text = "import jax\ndef f(x, w):\n    h = x + 1\n    y = x @ w\n    return y * h\n"
    found = edits_of(text, line=4, cure="Hint: psum over 'tp'")
    assert next(iter(found.values())).code == 'jax.lax.psum(x @ w, "tp")'


def test_the_body_of_a_loop_comes_before_other_functions() -> None:
    text = """
        import jax
        def other(x):
            return jax.lax.psum(x, "tp")
        def f(x):
            def body(i, x):
                return jax.lax.psum(x, "dp")
            return jax.lax.fori_loop(0, 3, body, x)
        """
    lines = [edit.line for edit in edits_of(text, line=8).values() if edit.kind == "replace"]
    assert lines == [7, 7, 4, 4]


def test_only_what_a_function_uses_is_edited() -> None:
    source = ParsedModule(
        "X = P('dp')\ndef g(x):\n    return x\ndef f(x):\n    return h(x)\ndef h(x):\n    return x, X\n"
    )
    lines = {edit.line for edit in edits_for(source, ("dp", "tp"), [], 4, "")}
    assert lines == {1, 5, 7}


def test_what_is_no_identity_on_one_device_says_so() -> None:
    found = edits_of(line_of('jax.lax.ppermute(x, "dp", [(0, 1)])'))
    assert not found[line_of("x")].is_identity
    assert edits_of(line_of('jax.lax.psum(x, "dp")'))[line_of("x")].is_identity
