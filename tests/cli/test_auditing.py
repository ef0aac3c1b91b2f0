"""``python -m typedshmap audit``: what it prints, and its exit codes."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from textwrap import dedent

import jax
import pytest

from typedshmap.tools.cli.main import main

PROGRAM = """
    import sys

    import jax
    import jax.numpy as jnp
    from jax.sharding import AbstractMesh, AxisType, PartitionSpec as P

    mesh = AbstractMesh((4,), ("tp",), axis_types=(AxisType.Auto,))


    def forgotten(x, w):
        return x @ w


    def twice(x):
        return jax.lax.psum(jax.lax.psum(x.sum(), "tp"), "tp")


    def trace(f, *args):
        specs = (P(None, "tp"), P("tp"))[-len(args):]
        jax.eval_shape(jax.shard_map(f, mesh=mesh, in_specs=specs, out_specs=P(), check_vma=False), *args)


    print("arguments", sys.argv[1:], __name__)
"""
FORGOTTEN = (
    "plain.py:12: error[unreduced] forgotten: return value varies over 'tp', which its PartitionSpec does not mention; "
    "the contraction over a dim sharded over 'tp' at plain.py:12 leaves partial sums: psum over 'tp'\n"
)
TWICE = (
    "plain.py:16: suspect[double-sum] twice: a result is 4 times too large on tp=4: it grows with 'tp'; pmean over "
    "'tp' in the place of psum of x.sum(), or leave out the psum over 'tp' of x.sum(); if this is intended, "
    "add the comment # typedshmap: ignore[double-sum]\n"
)
CALL, CALL_TWICE = "trace(forgotten, jnp.ones((4, 8)), jnp.ones((8, 4)))\n", "trace(twice, jnp.ones(8))\n"


@pytest.fixture
def program(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [*sys.path])
    monkeypatch.setattr(sys, "argv", [*sys.argv])
    path = tmp_path / "plain.py"
    path.write_text(dedent(PROGRAM))
    return path


def add(program: Path, text: str) -> None:
    program.write_text(program.read_text() + text)


def run(capfd: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, str, str]:
    code = main(["audit", *arguments])
    printed = capfd.readouterr()
    return code, printed.out, printed.err


def test_a_program_without_regions(program: Path, capfd: pytest.CaptureFixture[str]) -> None:
    code, out, err = run(capfd, "plain.py", "--steps", "2", "-m")
    assert (code, err) == (0, "")
    assert out == (
        "arguments ['--steps', '2', '-m'] __main__\ntypedshmap audit: no shard_map was traced; 0 errors, 0 suspects\n"
    )


def test_errors_and_suspects(program: Path, capfd: pytest.CaptureFixture[str]) -> None:
    add(program, CALL_TWICE)
    last = "typedshmap audit: 1 region, 1 read whole; 0 errors, 1 suspect\n"
    assert run(capfd, "plain.py") == (0, f"arguments [] __main__\n{TWICE}{last}", "")
    assert run(capfd, "--strict", "plain.py")[0] == 1
    add(program, CALL)
    last = "typedshmap audit: 2 regions, 2 read whole; 1 error, 1 suspect\n"
    assert run(capfd, "plain.py") == (1, f"arguments [] __main__\n{FORGOTTEN}{TWICE}{last}", "")


def test_a_module(program: Path, capfd: pytest.CaptureFixture[str]) -> None:
    add(program, CALL)
    code, out, _ = run(capfd, "-m", "plain", "--steps")
    assert code == 1 and out.startswith(f"arguments ['--steps'] __main__\n{FORGOTTEN}")


@pytest.mark.parametrize("form", ["json", "sarif"])
def test_what_the_program_prints_is_not_in_the_document(
    form: str, program: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    add(program, f'import os\nos.system("echo from a process of its own")\n{CALL}')
    code, out, err = run(capfd, "--format", form, "plain.py")
    assert code == 1 and err == "arguments [] __main__\nfrom a process of its own\n"
    document = json.loads(out)
    assert len(document["findings"] if form == "json" else document["runs"][0]["results"]) == 1


HINTS = """\
# forgotten at plain.py:11, 2 calls
def forgotten(x: Float[Array, "_ [_/tp]"], w: Float[Array, "[_/tp] _"]) -> Float[Array, "_ _"]: ...

typed_shard_map(forgotten, mesh=mesh, check_vma=False)  # plain.py:21
"""


@pytest.mark.skipif(jax.__version_info__ < (0, 10, 2), reason="below jax 0.10.2 calls are not seen")
def test_hints(program: Path, capfd: pytest.CaptureFixture[str]) -> None:
    add(program, CALL + CALL.replace("8", "16"))
    code, out, err = run(capfd, "--hints", "plain.py")
    last = "typedshmap audit: 1 region, 1 read whole; 1 error, 0 suspects\n"
    assert (code, err) == (1, "")
    assert out == f"arguments [] __main__\n{HINTS}\n{FORGOTTEN}{last}"
    code, out, _ = run(capfd, "--hints", "--format", "json", "plain.py")
    (hints,) = json.loads(out)["hints"]
    text = HINTS.partition("\n")[2].removesuffix("\n")
    assert hints == {"name": "forgotten", "file": "plain.py", "line": 11, "calls": 2, "text": text}


def test_hints_where_there_is_no_call(program: Path, capfd: pytest.CaptureFixture[str]) -> None:
    assert "# no call of jax.shard_map without hints was seen" in run(capfd, "--hints", "plain.py")[1]
    assert "hints" not in json.loads(run(capfd, "--format", "json", "plain.py")[1])


def test_a_baseline(program: Path, capfd: pytest.CaptureFixture[str]) -> None:
    add(program, CALL)
    assert run(capfd, "--write-baseline", "known.json", "plain.py")[0] == 0
    code, out, _ = run(capfd, "--baseline", "known.json", "plain.py")
    assert code == 0 and out.splitlines()[-1] == "typedshmap audit: 1 region, 1 read whole; 0 errors, 0 suspects"
    add(program, CALL_TWICE)
    assert TWICE in run(capfd, "--baseline", "known.json", "plain.py")[1]


def test_axes_that_are_taken_to_be_longer(program: Path, capfd: pytest.CaptureFixture[str]) -> None:
    program.write_text(program.read_text().replace("(4,), ", "(1,), "))
    add(program, CALL)
    assert run(capfd, "plain.py")[0] == 0
    assert run(capfd, "--mesh", "tp=4", "plain.py")[0] == 1


@pytest.mark.parametrize(
    ("end", "code", "error"),
    [
        ("sys.exit(3)\n", 3, ""),
        ("sys.exit()\n", 1, ""),
        ('sys.exit("no data")\n', 1, "no data\n"),
    ],
)
def test_a_program_keeps_its_exit_code(
    end: str, code: int, error: str, program: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    add(program, CALL + end)
    found, out, err = run(capfd, "plain.py")
    assert (found, err) == (code, error) and FORGOTTEN in out


def test_a_program_that_fails_on_a_single_device_is_told_how_to_have_more(
    program: Path, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    program.write_text("raise ValueError('cannot reshape array of size 1 into shape (4,2)')\n")
    monkeypatch.setattr(jax, "device_count", lambda: 1)
    code, _, err = run(capfd, "plain.py")
    assert code == 1
    assert err.endswith("\naudit: the program found 1 device; --devices 8 makes as many virtual ones\n")
    assert "--devices" not in run(capfd, "--devices", "8", "plain.py")[2]


def test_a_program_that_fails_is_reported_on(program: Path, capfd: pytest.CaptureFixture[str]) -> None:
    add(program, CALL + "def late():\n    raise ValueError('mine')\n\n\nlate()\n")
    code, out, err = run(capfd, "plain.py")
    assert code == 1 and FORGOTTEN in out
    lines = err.splitlines()
    assert lines[0] == "Traceback (most recent call last):" and lines[-1] == "ValueError: mine"
    assert "plain.py" in lines[1] and "typedshmap" not in err.replace(str(program), "")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("nothing.py",), "audit: nothing.py: there is no such script\n"),
        ((".",), "audit: .: it is a folder; name a script, or with -m a module\n"),
        (("-m", "nothing_there"), "audit: nothing_there: there is no such module\n"),
        (("--mesh", "tp=0", "plain.py"), "audit: --mesh tp=0: "),
        (("--hints", "--format", "sarif", "plain.py"), "audit: --hints is printed as text or json, not as sarif\n"),
        (
            ("--devices", "0", "plain.py"),
            "audit: cannot make 0 virtual CPU devices: the number must be from 1 to 512\n",
        ),
        (("--baseline", "none.json", "plain.py"), "audit: --baseline none.json: No such file or directory\n"),
        (("--write-baseline", "none/none.json", "plain.py"), "audit: --write-baseline none/none.json: No such file"),
    ],
)
def test_misuse(arguments: tuple[str, ...], message: str, program: Path, capfd: pytest.CaptureFixture[str]) -> None:
    code, _, err = run(capfd, *arguments)
    assert code == 2 and err.startswith(message) and len(err.splitlines()) == 1


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("aduit", "plain.py"), ": there is no verb 'aduit' (did you mean 'audit'?)"),
        (("audit", "--fromat", "json", "plain.py"), " audit: there is no '--fromat' (did you mean '--format'?)"),
        (
            ("audit", "--format", "jsn", "plain.py"),
            " audit: there is no --format 'jsn' (did you mean 'json'?); there are text, github, json, sarif",
        ),
        (("check", "plain", "--mehs=dp=4", "--mesh", "dp=4"), " check: there is no '--mehs' (did you mean '--mesh'?)"),
        (
            ("check", "plain", "--mesh", "dp=4", "--width", "wide"),
            " check: there is no '--width'; the size of a dim is a number, as in --width 32",
        ),
        (
            ("explain", "plain", "--mesh", "dp=4", "--sizes", "many"),
            " explain: there is no '--sizes' (did you mean '--size'?)",
        ),
    ],
)
def test_what_is_misspelt_is_repeated_with_the_nearest(
    arguments: tuple[str, ...], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit, match="2"):
        main(arguments)
    assert capsys.readouterr() == ("", f"python -m typedshmap{message}; see --help\n")


def test_virtual_devices(program: Path) -> None:
    add(program, "print(jax.device_count())\n")
    environment = {name: value for name, value in os.environ.items() if name not in ("XLA_FLAGS", "JAX_PLATFORMS")}
    command = [sys.executable, "-m", "typedshmap", "audit", "--devices", "3", "plain.py"]
    done = subprocess.run(command, capture_output=True, text=True, env=environment, check=False)
    assert done.returncode == 0 and done.stdout.splitlines()[1] == "3", done.stderr
