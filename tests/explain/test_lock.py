"""``python -m typedshmap explain --lock`` and ``--check``; and the costs of the examples, the same on all lines of JAX.

    python tests/explain/test_lock.py

records the costs of the examples anew, in ``examples/costs.json``."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path

import pytest

from typedshmap.tools.cli.main import main

ROOT = Path(__file__).parents[2]
sys.path.insert(0, str(ROOT / "bench"))

import memory  # noqa: E402

PROGRAM = """
import jax
import jax.numpy as jnp
from typedshmap import Array, Float32, all_gather, psum, typed_shard_map


@typed_shard_map
def product(x: Float32[Array, "[b/dp] m"], w: Float32[Array, "[m/dp] n"]) -> Float32[Array, "[b/dp] n"]:
    return x @ all_gather(w, "[m/dp] n -> m n ~dp")


@typed_shard_map
def scaled(x: Float32[Array, "[b/dp] m"], factor: float) -> Float32[Array, "m"]:
    return psum(factor * x.sum(0), "dp")
"""
SIZES = ("--size", "b=16 m=32 n=64")
ON = ("program.py:product", "--mesh", "dp=4", *SIZES)


@pytest.fixture
def here(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [*sys.path])
    Path("program.py").write_text(PROGRAM)
    yield tmp_path
    sys.modules.pop("program", None)


def test_costs_that_are_recorded_are_the_same_afterwards(run, here):
    key = "program.py:product --mesh dp=4 --size b=16 --size m=32 --size n=64"
    assert run(*ON, "--no-grad", "--lock", "costs.json") == (0, f"new      {key} --no-grad\n", "")
    (entry,) = json.loads(Path("costs.json").read_text())["costs"].values()
    assert entry == {
        "sizes": "b=16, m=32, n=64",
        "collectives": {"all-gather/dp": 1},
        "wire_bytes": {"all-gather/dp": 3 * 8 * 64 * 4},
        "products": 2 * 4 * 32 * 64,
        "flops": 2 * 4 * 32 * 64,
        "memory": entry["memory"],
    }
    before = Path("costs.json").read_bytes()
    assert run(*ON, "--no-grad", "--check", "costs.json") == (0, f"same     {key} --no-grad\n", "")
    assert run(*ON, "--no-grad", "--lock", "costs.json") == (0, f"same     {key} --no-grad\n", "")
    assert Path("costs.json").read_bytes() == before


def test_what_differs_is_printed_as_a_table(run, here):
    run(*ON, "--no-grad", "--lock", "costs.json")
    Path("program.py").write_text(PROGRAM.replace("x @ all", "psum(jnp.sum(w), 'dp') * (x @ jnp.ones((32, 32))) @ all"))
    code, out, err = run(*ON, "--no-grad", "--check", "costs.json")
    assert (code, err) == (1, "")
    assert out.splitlines() == [
        "differs  program.py:product --mesh dp=4 --size b=16 --size m=32 --size n=64 --no-grad",
        "         cost                         recorded       found   change",
        "         all-reduce/dp                       0           1      new",
        "         all-reduce/dp on the wire         0 B         6 B      new",
        "         FLOP in products           16.4 kFLOP  24.6 kFLOP    +50 %",
        "         FLOP                       16.4 kFLOP  25.2 kFLOP  +53.9 %",
        "",
    ]
    assert run(*ON, "--no-grad", "--lock", "costs.json")[1].startswith("changed  program.py:product")
    assert run(*ON, "--no-grad", "--check", "costs.json")[0] == 0


def test_small_differences_of_memory_are_none_and_those_of_products_are():
    from typedshmap.tools.explain.costs import Costs

    recorded = Costs("b=1", {"all-reduce/dp": 1}, {"all-reduce/dp": 8}, 1000, 2000, 3000)
    near = Costs("b=1", {"all-reduce/dp": 1}, {"all-reduce/dp": 8}, 1000, 2200, 2700)
    assert recorded.changes(near) == []
    other = Costs("b=2", {"all-reduce/tp": 1}, {"all-reduce/tp": 8}, 1001, 2201, 2699)
    assert [change.row for change in recorded.changes(other)] == [
        ("sizes", "b=1", "b=2", ""),
        ("all-reduce/dp", "1", "0", "gone"),
        ("all-reduce/tp", "0", "1", "new"),
        ("all-reduce/dp on the wire", "8 B", "0 B", "gone"),
        ("all-reduce/tp on the wire", "0 B", "8 B", "new"),
        ("FLOP in products", "1,000", "1,001", "+0.1 %"),
        ("FLOP", "2 kFLOP", "2.2 kFLOP", "+10.1 %"),
        ("peak memory", "2.93 KiB", "2.64 KiB", "-10 %"),
    ]


def test_a_file_has_several_functions_and_meshes_of_which_others_are_left(run, here):
    run(*ON, "--mesh", "dp=2", "--lock", "costs.json")
    first = json.loads(Path("costs.json").read_text())["costs"]
    code, out, _ = run("program", "--mesh", "dp=8", "--arg", "factor=0.5", "--grad", "--lock", "costs.json")
    assert (code, out.splitlines()) == (0, [
        "new      program.py:product --mesh dp=8 --grad",
        "new      program.py:scaled --mesh dp=8 --arg factor=0.5 --grad",
    ])  # fmt: skip
    both = json.loads(Path("costs.json").read_text())["costs"]
    assert {key: both[key] for key in first} == first and len(both) == len(first) + 2 == 4
    assert run(*ON, "--check", "costs.json")[0] == 0


def test_a_function_that_cannot_be_traced_leaves_its_entry(run, here):
    code, out, _ = run("program.py", "--mesh", "dp=4", "--lock", "costs.json")
    assert code == 1 and "FAIL   scaled  dp=4\n" in out and "new      program.py:product" in out
    assert [*json.loads(Path("costs.json").read_text())["costs"]] == ["program.py:product --mesh dp=4"]


NO_LOCK = {
    "empty": "",
    "binary": "\x00",
    "a list": "[]",
    "of another version": '{"version": 2, "costs": {}}',
    "an entry that is none": '{"version": 1, "costs": {"f": 3}}',
    "an entry that lacks numbers": '{"version": 1, "costs": {"f": {"sizes": "", "collectives": {}}}}',
    "numbers that are none": '{"version": 1, "costs": {"f": {"sizes": "", "collectives": {}, "wire_bytes": {}, '
    '"products": true, "flops": 1, "memory": 1}}}',
}


@pytest.mark.parametrize("option", ["--lock", "--check"])
@pytest.mark.parametrize("name", NO_LOCK)
def test_a_file_that_is_no_lock_file_is_refused_and_left(run, here, name, option):
    Path("other.json").write_text(NO_LOCK[name])
    message = f"explain: {option} other.json: it is not a file that --lock has written\n"
    assert run(*ON, option, "other.json") == (2, "", message)
    assert Path("other.json").read_text() == NO_LOCK[name]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--check", "no.json"], "--check no.json: no such file or directory"),
        (["--check", "."], "--check .: is a directory"),
        (["--lock", "."], "--lock .: is a directory"),
        (["--lock", "no/costs.json"], "--lock no/costs.json: there is no folder 'no' in which a file can be made"),
        (
            ["--lock", "a.json", "--check", "a.json"],
            "--lock and --check: give one of them; --check compares with what --lock has written",
        ),
    ],
)
def test_a_file_that_cannot_be_used_is_refused(run, here, options, message):
    assert run(*ON, *options) == (2, "", f"explain: {message}\n")


def test_an_entry_that_is_missing_is_misuse(run, here):
    run(*ON, "--lock", "costs.json")
    for more in (["--mesh", "dp=2"], ["--grad"], ["--explicit"], ["--size", "b=32"]):
        code, out, err = run(*ON, *more, "--check", "costs.json")
        assert (code, out) == (2, "")
        assert err.startswith("explain: --check costs.json: it has no entry for 'program.py:product --mesh dp=")
        assert err.endswith("; --lock costs.json in the place of --check records it\n")


def commands() -> list[list[str]]:
    """The examples whose costs are recorded, as command lines."""
    found: list[list[str]] = []
    for name, (mesh, sizes) in memory.EXAMPLES.items():
        module, function = name.split(".")
        if module == "optimizer":  # its state is no size
            function = "loss_and_gradients"
        target = os.path.relpath(ROOT / "examples" / f"{module}.py")
        given = " ".join(f"{key}={size}" for key, size in sizes.items())
        found.append([f"{target}:{function}", "--mesh", mesh, "--size", given])
    return found


@pytest.mark.slow
def test_the_costs_of_the_examples_are_those_that_are_recorded_for_all_versions_of_jax(run, monkeypatch):
    monkeypatch.chdir(ROOT)
    costs = ROOT / "examples" / "costs.json"
    for command in commands():
        code, out, err = run(*command, "--check", costs)
        assert (code, err) == (0, ""), out
    assert len(json.loads(costs.read_text())["costs"]) == len(commands())


if __name__ == "__main__":
    (ROOT / "examples" / "costs.json").unlink(missing_ok=True)
    for command in commands():
        main(["explain", *command, "--lock", str(ROOT / "examples" / "costs.json")])
