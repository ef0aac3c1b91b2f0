"""``check --fix`` and ``audit --fix``: the edit after which a program is right, as a diff; or that there is none."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path
from textwrap import dedent

import pytest
from tiers import slow

from typedshmap.__main__ import main
from typedshmap.cli import fixing

LAYERS = """
    import jax
    from typedshmap import *


    Rows = Float[Array, "[b/dp] m"]


    @typed_shard_map
    def mlp(x: Rows, up: Float[Array, "m [f/tp]"], down: Float[Array, "[f/tp] m"]) -> Rows:
        h = jax.nn.relu(x @ up)
        return h @ down


    @typed_shard_map
    def right(x: Float[Array, "[b/dp] m"]) -> Float[Array, "[b/dp] m"]:
        return 2 * x
"""
CENTRED = """
    import jax
    from typedshmap import *


    @typed_shard_map
    def centred(x: Float[Array, "[n/dp]"]) -> Float[Array, "[n/dp]"]:
        return x - doubled(x).mean() / 2


    @typed
    def doubled(x: Float[Array, "[n/dp]"]) -> Float[Array, "[n/dp]"]:
        return 2 * x
"""


@pytest.fixture
def module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest):
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    name = re.sub(r"\W", "_", request.node.name)

    def write(text: str) -> str:
        (tmp_path / f"{name}.py").write_text(dedent(text).lstrip(), encoding="utf-8")
        return f"{name}.py"

    yield write
    sys.modules.pop(name, None)


def check(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, str]:
    code = main(["check", "--fix", *arguments])
    return code, capsys.readouterr().out


def changed_lines(printed: str) -> list[str]:
    return [line for line in printed.splitlines() if re.match(r"[+-](?![+-])", line)]


def test_a_type_error_is_cured_by_the_edit_that_the_message_names(module, capsys):
    file = module(LAYERS)
    before = Path(file).read_text(encoding="utf-8")
    code, out = check(capsys, file, "--mesh", "dp=2,tp=2")
    fix = out[out.index("fix    mlp") :].splitlines()
    holds = "its types hold, and its results are those of one device on dp=2, tp=2; dp=4, tp=1; "
    assert re.fullmatch(rf"fix    mlp  after \d edits?: {re.escape(holds)}.*", fix[0])
    assert fix[0].endswith("; they are proved to be on all meshes")
    assert fix[1:4] == [f"--- {file}", f"+++ {file}", "@@ -8,7 +8,7 @@"]
    assert changed_lines(out) == ["-    return h @ down", '+    return jax.lax.psum(h @ down, "tp")']
    assert code == 1 and fix[-1] == "2 functions on 1 mesh: 2 failed"
    assert Path(file).read_text(encoding="utf-8") == before


def test_what_only_other_meshes_find_is_cured_as_well(module, capsys):
    code, out = check(capsys, module(CENTRED), "--mesh", "dp=4", "--size", "n=16")
    assert code == 1 and "DIFFER centred" in out
    assert changed_lines(out) == [
        "-    return x - doubled(x).mean() / 2",
        '+    return x - jax.lax.pmean(doubled(x).mean() / 2, "dp")',
    ]


def test_the_patch_that_is_printed_makes_the_check_pass(module, capsys):
    file = module(CENTRED)
    _, out = check(capsys, file, "--mesh", "dp=4")
    Path("fix.patch").write_text(out[out.index("--- ") : out.rindex("1 function")], encoding="utf-8")
    subprocess.run(["patch", "-p0", "-i", "fix.patch"], check=True, capture_output=True)
    sys.modules.pop(file.removesuffix(".py"))
    code, out = check(capsys, file, "--mesh", "dp=4")
    assert code == 0 and "fix" not in out


def test_what_no_single_edit_cures_is_said(module, capsys, monkeypatch):
    monkeypatch.setattr(fixing, "_SECONDS", 2.0)
    text = CENTRED.replace("doubled(x).mean() / 2", "jax.random.normal(jax.random.key(x.shape[0]), x.shape)")
    _, out = check(capsys, module(text), "--mesh", "dp=4")
    assert re.search(r"^no fix centred  none of \d+ edits that were tried is right$", out, re.MULTILINE)


def test_a_right_module_is_left_alone(module, capsys):
    code, out = check(capsys, module(LAYERS.replace("h @ down", 'jax.lax.psum(h @ down, "tp")')), "--mesh", "dp=2,tp=2")
    assert code == 0 and "fix" not in out


def test_a_function_without_hints_is_one_for_audit(module, capsys):
    text = """
        import jax
        from jax.sharding import PartitionSpec as P

        def total(x):
            return jax.shard_map(lambda x: x.sum(), in_specs=P("dp"), out_specs=P(), check_vma=False)(x)
    """
    _, out = check(capsys, f"{module(text)}:total", "--mesh", "dp=2", "--arg", "x=f32[8]")
    assert "no fix total  it has no hints; audit --fix edits such programs\n" in out


def test_what_an_edited_module_prints_and_changes_is_not_seen(module, capsys):
    text = CENTRED + '\n    print("imported")\n    COUNT = [0]\n'
    _, out = check(capsys, module(text), "--mesh", "dp=4")
    assert out.count("imported") == 1 and "fix    centred" in out


PROGRAM = """
    import sys

    import jax
    import jax.numpy as jnp
    from jax.sharding import PartitionSpec as P

    mesh = jax.make_mesh((4, 2), ("dp", "tp"), axis_types=(jax.sharding.AxisType.Auto,) * 2)


    def loss(x):
        return jnp.mean(x**2)


    if __name__ == "__main__":
        f = jax.jit(jax.shard_map(loss, mesh=mesh, in_specs=P("dp"), out_specs=P(), check_vma=False))
        print("loss", f(jnp.arange(32.0).reshape(8, 4)), *sys.argv[1:])
"""


def audit(tmp_path: Path, text: str, *options: str) -> subprocess.CompletedProcess[str]:
    (tmp_path / "train.py").write_text(dedent(text).lstrip(), encoding="utf-8")
    command = [
        sys.executable,
        "-m",
        "typedshmap",
        "audit",
        "--fix",
        "--devices",
        "8",
        *options,
        "train.py",
        "--steps",
        "1",
    ]
    return subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=500, check=False)


def test_a_program_without_hints_is_cured_by_edits_that_are_run(tmp_path):
    done = audit(tmp_path, PROGRAM)
    assert done.returncode == 1 and done.stdout.count("--steps 1") == 1  # of its own run alone
    assert re.search(
        r"^fix    train.py:11  after \d+ edits?: \[varying\] is gone, nothing else is found", done.stdout, re.M
    )
    assert changed_lines(done.stdout) == [
        "-    return jnp.mean(x**2)",
        '+    return jax.lax.pmean(jnp.mean(x**2), "dp")',
    ]


@pytest.mark.parametrize("form", [slow("json"), slow("github")])
def test_a_document_stays_one(form, tmp_path):
    done = audit(tmp_path, PROGRAM, "--format", form)
    if form == "json":
        assert json.loads(done.stdout)["findings"]
        assert "+    return jax.lax.pmean" in done.stderr
    else:
        assert done.stdout.count("::error") == 2 and "+    return jax.lax.pmean" in done.stdout


@pytest.mark.slow
def test_a_program_that_is_right_is_left_alone(tmp_path):
    done = audit(tmp_path, PROGRAM.replace("jnp.mean(x**2)", 'jax.lax.pmean(jnp.mean(x**2), "dp")'))
    assert done.returncode == 0 and "fix" not in done.stdout


@pytest.mark.slow
def test_a_module_that_a_script_imports_is_edited(tmp_path):
    (tmp_path / "losses.py").write_text("import jax.numpy as jnp\ndef loss(x):\n    return jnp.mean(x**2)\n")
    text = PROGRAM.replace("def loss(x):\n        return jnp.mean(x**2)", "from losses import loss")
    done = audit(tmp_path, text)
    assert "+++ losses.py" in done.stdout, done.stdout + done.stderr
    assert changed_lines(done.stdout)[-1] == '+    return jax.lax.pmean(jnp.mean(x**2), "dp")'
