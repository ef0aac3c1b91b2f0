"""``python -m typedshmap explain``."""

from __future__ import annotations

import re
import shlex
from pathlib import Path
from textwrap import dedent

import pytest

ROOT = Path(__file__).parents[2]

MODULE = """
from typedshmap import Array, Float32, psum, typed, typed_shard_map


@typed_shard_map
def total(x: Float32[Array, "[batch/dp] model"]) -> Float32[Array, "model"]:
    return psum(x.sum(0), "dp")


@typed_shard_map
def scaled(x: Float32[Array, "[batch/dp] model"], factor: float) -> Float32[Array, "[batch/dp] model"]:
    return x * factor


@typed
def helper(x: Float32[Array, "[batch/dp] model"]) -> Float32[Array, "model"]:
    return psum(x.sum(0), "dp")
"""


@pytest.fixture
def module(tmp_path):
    path = tmp_path / "explained_program.py"
    path.write_text(MODULE, encoding="utf-8")
    return path


def test_one_function_on_one_mesh(run, module):
    total = (f"{module}:total", "--mesh", "dp=64", "--size", "batch=128 model=256", "--no-grad")
    code, out, err = run(*total)
    assert (code, err) == (0, "")
    assert out == dedent("""\
        total on dp=64 (64 devices): batch=128, model=256
        per device: peak memory 4 KiB at explained_program.py:7 (total): arguments 2 KiB, results 1 KiB,
            temporaries 1 KiB
        per device: 512 FLOP; 5 KiB to and from memory, 0.1 FLOP per byte
        per device: 1 collective: forward 1.97 KiB over dp

        collective  over  part     times  on the wire  where
        all-reduce  dp    forward      1     1.97 KiB  explained_program.py:7 (total)

        computes  moves  FLOP per byte  where
        512 FLOP  5 KiB            0.1  explained_program.py:7 (total)

        """)
    again, values, _ = run(*total, "--values")
    assert again == 0 and values.startswith(out)
    assert values.removeprefix(out) == dedent("""\
        value   global shape  spec           shard shape  bytes per device  hint
        x       f32[128,256]  P('dp', None)  f32[2,256]              2 KiB  Float32[Array, "[batch/dp] model"]
        return  f32[256]      P(None)        f32[256]                1 KiB  Float32[Array, "model"]

        part     collective  over  devices     in    out  on the wire  times  where
        forward  all-reduce  dp         64  1 KiB  1 KiB     1.97 KiB      1  explained_program.py:7 (total)

        total    over  collectives     in    out  on the wire
        forward  dp              1  1 KiB  1 KiB     1.97 KiB

        """)


def test_several_meshes_are_compared_and_one_that_fails_is_reported(run, module):
    code, out, _ = run(f"{module}:total", "--mesh", "dp=4", "--mesh", "dp=3", "--size", "batch=64 model=4")
    assert code == 1
    assert out.splitlines()[2:5] == [
        "mesh  devices  peak memory  forward dp  on the wire",
        "dp=4        4        288 B        24 B         24 B",
        "dp=3            ShapeError",
    ]


def test_a_bandwidth_gives_seconds(run, module):
    sizes = ("--size", "batch=64 model=256")
    code, out, _ = run(f"{module}:total", "--mesh", "dp=4", *sizes, "--bandwidth", "dp=1GB/s")
    assert code == 0 and "1.54 us one after the other" in out


def test_all_functions_of_a_module_are_explained_and_one_that_cannot_be_stops_no_other(run, module):
    code, out, _ = run(module, "--mesh", "dp=4")
    assert code == 1
    assert "total on dp=4" in out and "helper" not in out
    assert "FAIL   scaled  dp=4\n       StructureError: scaled: argument 'factor' (float)" in out
    assert "; pass --arg factor=...\n" in out
    assert run(module, "--mesh", "dp=4", "--arg", "factor=0.5")[0] == 0


def test_a_page_is_written(run, module, tmp_path):
    page = tmp_path / "page.html"
    code, *_ = run(module, "--mesh", "dp=4", "--arg", "factor=0.5", "--html", page)
    text = page.read_text(encoding="utf-8")
    assert code == 0 and text.startswith("<!doctype html>")
    assert "total on dp=4" in text and "scaled on dp=4" in text


@pytest.mark.parametrize(
    "arguments, message",
    [
        (["--mesh", "dp=4", "--bandwidth", "tp=1GB/s"],
         "explain: --bandwidth: a bandwidth is given for mesh axis 'tp', which the mesh (dp=4) does not have\n"),
        (["--mesh", "dp=4", "--bandwidth", "dp"], "explain: --bandwidth: the bandwidth of mesh axis 'dp' is ''\n"),
        (["--mesh", "dp=4", "--html", "/nowhere/page.html"], "explain: --html /nowhere/page.html: there is no folder"),
    ],
)  # fmt: skip
def test_what_cannot_be_read_is_reported(run, module, arguments, message):
    code, _, err = run(f"{module}:total", *arguments)
    assert code == 2 and err.startswith(message)


def commands_of_the_page() -> list[str]:
    """The command lines in docs/explain.md, of programs that are there."""
    text = (ROOT / "docs" / "explain.md").read_text(encoding="utf-8").partition("## From the command line")[2]
    blocks = re.findall(r"^```sh\n(.*?)^```$", text, re.MULTILINE | re.DOTALL)
    return [line for block in blocks for line in block.replace("\\\n", " ").splitlines()]


@pytest.mark.sample(2)
@pytest.mark.parametrize("command", commands_of_the_page())
def test_the_command_lines_of_the_documentation_work(run, monkeypatch, tmp_path, command):
    monkeypatch.chdir(ROOT)
    program, given = shlex.split(command)[:4], shlex.split(command)[4:]
    assert program == ["python", "-m", "typedshmap", "explain"]
    code, out, err = run(*[tmp_path / word if word.endswith(".html") else word for word in given])
    assert (code, err) == (0, "")
    assert "train_step" in out
    assert [path.name for path in tmp_path.iterdir()] == (["quickstart.html"] if "--html" in given else [])


def test_the_documentation_has_command_lines():
    assert len(commands_of_the_page()) == 4
