"""``python -m typedshmap rewrite``: what it prints, and its exit code."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from typedshmap.__main__ import main

BEFORE = """\
import jax
from jax.sharding import PartitionSpec as P


def double(x):
    return 2.0 * x


program = jax.shard_map(double, mesh=mesh, in_specs=P("dp"), out_specs=P("dp"))
"""
AFTER = """\
from typedshmap import Array, PyTree, Shaped, typed_shard_map


def double(x: PyTree[Shaped[Array, "[_/dp] ..."]]) -> PyTree[Shaped[Array, "[_/dp] ..."]]:
    return 2.0 * x


program = typed_shard_map(double, mesh=mesh)
"""
DIFF = """\
--- program.py
+++ program.py
@@ -1,9 +1,8 @@
-import jax
-from jax.sharding import PartitionSpec as P
+from typedshmap import Array, PyTree, Shaped, typed_shard_map
~
~
-def double(x):
+def double(x: PyTree[Shaped[Array, "[_/dp] ..."]]) -> PyTree[Shaped[Array, "[_/dp] ..."]]:
     return 2.0 * x
~
~
-program = jax.shard_map(double, mesh=mesh, in_specs=P("dp"), out_specs=P("dp"))
+program = typed_shard_map(double, mesh=mesh)
""".replace("~", " ")  # what diff puts before a blank line
LEFT = "import jax\ng = jax.shard_map(f, mesh=m, in_specs=s, out_specs=s)\n"
REASON = "the spec 's' is not bound once to a literal"


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "program.py").write_text(BEFORE, encoding="utf-8")
    (tmp_path / "left.py").write_text(LEFT, encoding="utf-8")
    (tmp_path / "none.py").write_text("print(1)\n", encoding="utf-8")
    (tmp_path / "broken.py").write_text("x = 1\ny = = 2\n", encoding="utf-8")
    (tmp_path / "latin.py").write_bytes("x = 'é'\n".encode("latin-1"))
    (tmp_path / "folder").mkdir()
    return tmp_path


def test_the_diff_is_printed_and_nothing_is_written(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["rewrite", "program.py"]) == 0
    assert capsys.readouterr() == (DIFF, "")
    assert (folder / "program.py").read_text(encoding="utf-8") == BEFORE


def test_the_diff_is_a_patch(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    main(["rewrite", "program.py"])
    subprocess.run(["patch", "-p0"], input=capsys.readouterr().out, encoding="utf-8", check=True, capture_output=True)
    assert (folder / "program.py").read_text(encoding="utf-8") == AFTER


def test_write_changes_the_file(folder: Path) -> None:
    assert main(["rewrite", "--write", "program.py"]) == 0
    assert (folder / "program.py").read_text(encoding="utf-8") == AFTER


def test_write_keeps_the_ends_of_lines(folder: Path) -> None:
    (folder / "program.py").write_bytes(BEFORE.replace("\n", "\r\n").encode())
    main(["rewrite", "--write", "program.py"])
    assert (folder / "program.py").read_bytes() == AFTER.replace("\n", "\r\n").encode()


def test_a_last_line_without_an_end_is_shown_as_by_diff(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (folder / "program.py").write_text(BEFORE.rstrip("\n"), encoding="utf-8")
    main(["rewrite", "program.py"])
    assert capsys.readouterr().out.endswith("=mesh)\n\\ No newline at end of file\n")


PROBLEMS = {
    "left.py": (1, f"left.py:2: left: {REASON}\n"),
    "none.py": (0, "none.py: no call of jax.shard_map\n"),
    "missing.py": (2, "missing.py: no such file or directory\n"),
    "folder": (2, "folder: is a directory\n"),
    "broken.py": (2, "broken.py:2: it is no Python\n"),
    "latin.py": (2, "latin.py: it is not UTF-8\n"),
}


@pytest.mark.parametrize(("name", "expected"), PROBLEMS.items(), ids=list(PROBLEMS))
def test_what_is_not_rewritten_is_reported_on_stderr(
    name: str, expected: tuple[int, str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert (main(["rewrite", name]), *capsys.readouterr()) == (expected[0], "", expected[1])


def test_one_file_that_cannot_be_read_does_not_stop_the_others(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["rewrite", "missing.py", "left.py", "program.py"]) == 2
    out, err = capsys.readouterr()
    assert out == DIFF
    assert err == PROBLEMS["missing.py"][1] + PROBLEMS["left.py"][1]


@pytest.mark.parametrize(
    ("arguments", "line"),
    [
        (["rewrite"], " rewrite: the following arguments are required: FILE"),
        (["rewrote"], ": there is no verb 'rewrote' (did you mean 'rewrite'?)"),
    ],
)
def test_a_wrong_command_line_ends_in_one_line(
    arguments: list[str], line: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as caught:
        main(arguments)
    assert caught.value.code == 2
    assert capsys.readouterr() == ("", f"python -m typedshmap{line}; see --help\n")


def test_without_a_verb_the_help_is_printed(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "120")
    assert main([]) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert "    rewrite   turn jax.shard_map calls with literal specs into typed ones, without running them\n" in err


def test_a_form_feed_ends_no_line_of_the_diff(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (folder / "program.py").write_text(BEFORE.replace("return", "return \x0c"), encoding="utf-8")
    main(["rewrite", "program.py"])
    assert capsys.readouterr().out == DIFF.replace("return", "return \x0c")


def test_it_runs_as_a_module(folder: Path) -> None:
    root = str(Path(__file__).parents[2])
    command = [sys.executable, "-m", "typedshmap", "rewrite", "left.py"]
    done = subprocess.run(command, env={**os.environ, "PYTHONPATH": root}, capture_output=True, encoding="utf-8")
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr.endswith(PROBLEMS["left.py"][1])
