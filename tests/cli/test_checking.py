"""``python -m typedshmap check``: what it prints, its exit codes, and what it does without devices."""

import json
import os
import re
import shlex
import subprocess
import sys
from pathlib import Path
from textwrap import dedent

import jax
import pytest

from typedshmap.tools.cli import output
from typedshmap.tools.cli.main import main

PROGRAM = """
import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh
from typedshmap import Array, Float, Int, psum, typed, typed_jit, typed_shard_map

mesh = Mesh(np.array(jax.devices()).reshape(4, 2), ("dp", "tp"))

@typed_shard_map(mesh=mesh)
def good(
    x: Float[Array, "[b/dp] m"], w: Float[Array, "m [f/tp]"], v: Float[Array, "[f/tp] m"]
) -> Float[Array, "[b/dp] m"]:
    return psum(x @ w @ v, "tp")

@typed_jit
@typed_shard_map(check_vma=False)
def part(x: Float[Array, "[b/dp] m"], w: Float[Array, "[m/tp] m"]) -> Float[Array, "[b/dp] m"]:
    return x[:, : w.shape[0]] @ w

@typed
def helper(x: Float[Array, "b"]) -> Float[Array, "b"]:
    return x

def plain(x):
    return x
"""
LOCAL_MEAN = """
import jax
from typedshmap import Array, Float, typed_shard_map

@typed_shard_map
def centred(x: Float[Array, "[n/dp]"]) -> Float[Array, "[n/dp]"]:
    return x - x.mean()

@typed_shard_map
def doubled(x: Float[Array, "[n/dp]"]) -> Float[Array, "[n/dp]"]:
    return 2 * x
"""
ODD = """
from typedshmap import Array, Float, typed_shard_map

class Model:
    @typed_shard_map
    def apply(self, x: Float[Array, "[b/dp]"]) -> Float[Array, "[b/dp]"]:
        return x

model = Model()

@typed_shard_map
def scaled(x: Float[Array, "[b/dp] d"], scale: float) -> Float[Array, "[b/dp] d"]:
    return x * scale

@typed_shard_map
def wrong(x: Float[Array, "[b/dp] d"]) -> Float[Array, "[b/dp] d"]:
    return x @ x
"""


@pytest.fixture
def module(tmp_path, monkeypatch):
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.chdir(tmp_path)

    def write(name: str, text: str) -> str:
        sys.modules.pop(name, None)
        (tmp_path / f"{name}.py").write_text(dedent(text), encoding="utf-8")
        return name

    return write


def run(capsys: pytest.CaptureFixture, *arguments: str) -> tuple[int, str, str]:
    code = main(["check", *arguments])
    printed = capsys.readouterr()
    return code, printed.out, printed.err


def test_a_line_per_function_and_mesh_and_the_errors_in_full(module, capsys):
    code, out, err = run(capsys, module("program_a", PROGRAM), "--mesh", "dp=4,tp=2", "--mesh", "dp=1024,tp=3")
    assert (code, err) == (1, "")
    lines = out.splitlines()
    assert lines[0].startswith("ok     good  dp=4, tp=2  (b=") and lines[1].startswith(
        "ok     good  dp=1024, tp=3  (b="
    )
    first = "\n".join(lines[2:12])
    m = int(lines[6].split(",")[1].split("]")[0])
    b = int(lines[6].split("[")[1].split(",")[0])
    assert first == (
        "FAIL   part  dp=4, tp=2\n"
        "       VaryingError: part: return value varies over 'tp', which its hint does not mention\n"
        "\n"
        '           return: Float[Array, "[b/dp] m"]\n'
        f"           got f32[{b},{m}]{{V:(dp,tp)}} per shard\n"
        "\n"
        "       Mesh: dp=4, tp=2\n"
        "       At: program_a.py:19 (part)\n"
        "       Hint: the contraction over m (sharded over 'tp') at program_a.py:19 "
        "leaves partial sums: psum over 'tp'\n"
        "FAIL   part  dp=1024, tp=3"
    )
    assert lines[-1] == "2 functions on 2 meshes: 2 failed"


SET_MESHES = {
    "explicit.py": """
        import jax
        from typedshmap import Array, Float, typed_shard_map
        jax.set_mesh(jax.make_mesh((8,), ("dp",)))
        @typed_shard_map
        def part(x: Float[Array, "[b/dp] m"]) -> Float[Array, "m +dp"]:
            return x.sum(0)
        """,
    "longer.py": """
        import jax
        from jax.sharding import AxisType
        from typedshmap import Array, Float, typed_shard_map
        jax.set_mesh(jax.make_mesh((4, 2), ("dp", "tp"), axis_types=(AxisType.Auto,) * 2))
        @typed_shard_map
        def total(x: Float[Array, "[b/dp] m"]) -> Float[Array, "m"]:
            return jax.lax.psum(x.sum(0), "dp")
        """,
    "of_its_own.py": """
        import jax
        import jax.numpy as jnp
        from typedshmap import Array, Float, typed_shard_map
        mesh = jax.make_mesh((2,), ("q",))
        scale = jax.device_put(jnp.ones(4), jax.NamedSharding(mesh, jax.P("q"))) * 2
        @typed_shard_map(mesh=mesh)
        def scaled(x: Float[Array, "[b/q] m"]) -> Float[Array, "[b/q] m"]:
            return 2 * x
        """,
}


def test_the_mesh_that_a_module_sets_gives_way_to_the_one_that_is_asked_for(capsys, tmp_path):
    """Its axis types stay; another module begins without it."""
    for name, text in SET_MESHES.items():
        (tmp_path / name).write_text(dedent(text))
    code, out, err = run(capsys, str(tmp_path), "--mesh", "dp=64,q=2", "--size", "b=128", "--size", "m=4")
    lines = [line.replace(str(tmp_path) + os.sep, "") for line in out.splitlines()]
    assert (code, err) == (0, "") and lines == [
        "ok     explicit.py:part  dp=64, q=2  (b=128, m=4)",
        "ok     longer.py:total  dp=64, q=2  (b=128, m=4)",
        "ok     of_its_own.py:scaled  dp=64, q=2  (b=128, m=4)",
        "3 functions on 1 mesh: all right",
    ]
    assert jax.sharding.get_mesh().empty


def test_several_targets_are_told_apart_and_a_folder_is_all_that_is_typed_below_it(module, capsys, tmp_path):
    first = module("program_q", PROGRAM)
    for name, text in {
        "shop/__init__.py": "",
        "shop/one.py": "from . import plain\n" + LOCAL_MEAN.replace("x - x.mean()", "-x"),
        "shop/plain.py": "VALUE = 1\n",
        "shop/inner/broken.py": "import typedshmap, nowhere\n",
        "shop/.hidden/broken.py": "import typedshmap, nowhere\n",
    }.items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(text)
    for name in ("env/lib", "node_modules/x", "build/lib", "lib/site-packages/other", ".git"):
        (tmp_path / "shop" / name).mkdir(parents=True)
        (tmp_path / "shop" / name / "broken.py").write_text("import typedshmap, passed_over\n")
    (tmp_path / "shop/env/pyvenv.cfg").touch()
    (tmp_path / "shop/gone.py").symlink_to(tmp_path / "nowhere.py")
    code, out, err = run(capsys, f"{first}:helper", "shop", "--mesh", "dp=8", "--size", "n=8", "--size", "b=8")
    assert (code, out.splitlines()) == (
        2,
        [
            "ok     program_q:helper  dp=8  (b=8)",
            "ok     shop/one.py:centred  dp=8  (n=8)",
            "ok     shop/one.py:doubled  dp=8  (n=8)",
            "3 functions on 1 mesh: all right",
        ],
    )
    assert err.splitlines()[1] == "    ModuleNotFoundError: No module named 'nowhere'" and "passed_over" not in err
    (tmp_path / "empty").mkdir()
    none = "check: empty: no function below it was made by typed_shard_map or typed_jit\n"
    assert run(capsys, "empty", "--mesh", "dp=8") == (2, "", none)


def test_what_takes_long_is_told_on_stderr(module, capsys, monkeypatch):
    monkeypatch.setattr(output, "SOON", 0.05)
    slow = "import time\ntime.sleep(0.3)\n" + LOCAL_MEAN
    _, _, err = run(capsys, module("program_s", slow) + ":doubled", "--mesh", "dp=4")
    assert err.startswith("check: importing: program_s:doubled, after 0 s\n")


def test_what_is_wrong_as_a_document(module, capfd):
    target = module("program_r", PROGRAM)
    code, out, err = run(capfd, target, "--mesh", "dp=4,tp=2", "--format", "json")
    (found,) = json.loads(out)["findings"]
    assert code == 1 and "FAIL   part" in err
    assert found.pop("message").startswith(
        "part: return value varies over 'tp', which its hint does not mention (on dp=4, tp=2); the contraction over m"
    )
    assert found == {"severity": "error", "kind": "varying", "file": "program_r.py", "line": 19, "region": "part"}
    _, out, _ = run(capfd, target, "--mesh", "dp=4,tp=2", "--format", "github")
    first, last = out.splitlines()
    assert first.startswith(
        "::error file=program_r.py,line=19,title=typedshmap varying::part: part: return value varies"
    )
    assert last == "2 functions on 1 mesh: 1 failed"


def test_one_function_of_a_file_with_its_sizes(module, capsys):
    found = run(capsys, module("program_b", PROGRAM) + ".py:helper", "--mesh", "dp=8", "--size", "b=3")
    assert found == (0, "ok     helper  dp=8  (b=3)\n1 function on 1 mesh: all right\n", "")


def test_a_size_that_does_not_divide_is_our_error(module, capsys):
    code, out, _ = run(capsys, module("program_d", PROGRAM) + ":good", "--mesh", "dp=4,tp=2", "--size", "b=6 m=4 f=4")
    assert code == 1
    assert out == (
        "FAIL   good  dp=4, tp=2\n"
        "       ShapeError: check: good: argument 'x' has b=6, which does not divide over 'dp' (4 shards)\n"
        "\n"
        '           x: Float[Array, "[b/dp] m"]\n'
        "                            ^^^^^^\n"
        "           got f32[6,4]\n"
        "\n"
        "       Mesh: dp=4, tp=2\n"
        "       Sizes: m=4 (w dim 0), f=4 (w dim 1)\n"
        "       Hint: make b a multiple of 4, or pad it and mask the rest\n"
        "1 function on 1 mesh: 1 failed\n"
    )


def test_methods_are_named_and_what_no_hint_makes_is_passed(module, capsys):
    name = module("program_e", ODD)
    code, out, err = run(capsys, name, "--mesh", "dp=4", "--size", "b=8 d=8")
    assert code == 1
    assert err == "left   Model.apply: a method needs an instance; name that, as in MODULE:instance.apply\n"
    assert out == (
        "left   scaled: not checked: argument 'scale' (float) holds no arrays and has no default; "
        "pass --arg scale=...\n"
        "FAIL   wrong  dp=4\n"
        "       TypeError: dot_general requires contracting dimensions to have the same shape, got (8,) and (2,).\n"
        "       typedshmap: in wrong, where the values are shards:\n"
        '           x: Float[Array, "[b/dp] d"]  is f32[2,8]{V:dp}\n'
        "       Mesh: dp=4\n"
        "       Sizes: b=8 (x dim 0), d=8 (x dim 1)\n"
        f"       At: {Path('program_e.py').resolve()}:17 (wrong)\n"
        "2 functions on 1 mesh: 1 failed, 1 not checked\n"
    )
    assert run(capsys, f"{name}:scaled", "--mesh", "dp=4", "--arg", "scale=0.5", "--size", "b=8 d=8")[0] == 0
    assert run(capsys, f"{name}:model.apply", "--mesh", "dp=4", "--size", "b=8")[:2] == (
        0,
        "ok     model.apply  dp=4  (b=8)\n1 function on 1 mesh: all right\n",
    )


def test_a_size_that_was_drawn_is_reported_where_a_body_cannot_take_it(module, capsys):
    name = module(
        "program_k",
        """
        from typedshmap import Array, Float, psum_scatter, reduce, typed_shard_map

        @typed_shard_map
        def scattered(x: Float[Array, "[b/dp] seq"]) -> Float[Array, "seq"]:
            return reduce(reduce(x, "[b/dp] s -> [s/dp]", "sum"), "[s/dp] -> s", "sum")

        @typed_shard_map
        def varying(x: Float[Array, "[b/dp] seq"]) -> Float[Array, "seq"]:
            return x[0]

        @typed_shard_map
        def cut(x: Float[Array, "[b/dp] seq"]) -> Float[Array, "[b/dp] seq"]:
            return x.reshape(-1, 1009, 2).reshape(x.shape)
        """,
    )
    code, out, _ = run(capsys, f"{name}:scattered", "--mesh", "dp=509", "--size", "b=509")
    assert code == 1
    lines = out.splitlines()
    size = int(lines[1].partition("has s=")[2].partition(" ")[0])
    assert lines[1] == (
        f"       ShapeError: reduce in scattered: the result has s={size} on each shard, "
        "which cannot be scattered over 'dp' (509 shards)"
    )
    assert lines[-2] == f"       Drawn: seq={size}; --size gives others"
    assert run(capsys, f"{name}:scattered", "--mesh", "dp=509", "--size", "b=509 seq=7")[1].count("Drawn") == 0
    assert run(capsys, f"{name}:varying", "--mesh", "dp=4", "--size", "b=8")[1].count("Drawn") == 0, "no size helps"
    _, out, _ = run(capsys, f"{name}:cut", "--mesh", "dp=4", "--size", "b=8")
    assert re.search(r"^ {7}Drawn: seq=\d+; --size gives others$", out, re.MULTILINE), out


@pytest.mark.filterwarnings("ignore::typedshmap.SuspectWarning")
def test_numerics_find_what_types_cannot(module, capsys):
    code, out, _ = run(capsys, module("program_f", LOCAL_MEAN), "--mesh", "dp=4", "--numerics", "--size", "n=16")
    lines = out.splitlines()
    assert code == 1 and lines[:2] == ["ok     centred  dp=4  (n=16)", "ok     doubled  dp=4  (n=16)"]
    assert lines[2] == "DIFFER centred" and lines[3].startswith("       AssertionError: centred: ")
    assert lines[-2:] == ["same   doubled  on one device and on dp=4", "2 functions on 1 mesh: 1 failed"]


DIGITS, THOUSANDS = f"b={'9' * 26}", f"b={'9' * 5000}"
WRONG_USE = [
    (["nothing_here", "--mesh", "dp=4"], "nothing_here: there is no such module (a file is named with its .py)"),
    (["nothing.py", "--mesh", "dp=4"], "nothing.py: there is no such file"),
    (["program_g", "--mesh", "dp"], "--mesh dp: 'dp' is not a name and a value, as in dp=4,tp=2"),
    (["program_g", "--mesh", ""], "--mesh '': no mesh axes; write them as in dp=4,tp=2"),
    (["program_g", "--mesh", "dp=0"], "--mesh dp=0: mesh axis 'dp' has size '0'; write a positive integer"),
    (["program_g", "--mesh", "dp=2,dp=2"], "--mesh dp=2,dp=2: mesh axis 'dp' occurs twice"),
    (
        ["program_g", "--mesh", "dp=4", "--size", "b=x"],
        "--size b=x: 'x' is not a size; write a number, or several with commas for *b",
    ),
    (
        ["program_g", "--mesh", "dp=4", "--size", "q=4"],
        "no function has a dim or an argument 'q'; there are b, f, m, v, w, x",
    ),
    (
        ["program_g", "--mesh", "dp=4", "--b", "8", "--numerisc=4"],
        "no function has a dim or an argument 'numerisc' (did you mean '--numerics'?); there are b, f, m, v, w, x",
    ),
    (["program_g:goood", "--mesh", "dp=4"], "program_g: has no 'goood' (did you mean 'good'?)"),
    (
        ["program_g:plain", "--mesh", "dp=4"],
        "program_g: plain: it has no hints and needs its arguments, arrays or jax.ShapeDtypeStruct: missing a "
        "required argument: 'x'\n\nHint: its arguments are given as in --arg \"x=f32[8,16]\"",
    ),
    (["os", "--mesh", "dp=4"], "os: no function here was made by typed_shard_map or typed_jit"),
    (
        ["program_g", "--mesh", "dp=1024", "--numerics"],
        "cannot make 1024 virtual CPU devices: the number must be from 1 to 512",
    ),
    (
        ["program_h", "--mesh", "dp=4"],
        "program_h: cannot be imported (it found 8 devices; --devices gives another number of virtual ones)\n"
        "    ZeroDivisionError: division by zero\n    At: {folder}/program_h.py:1 (<module>)",
    ),
    (
        ["program_n", "--mesh", "dp=4"],
        "program_n: cannot be imported (it found 8 devices; --devices gives another number of virtual ones)\n"
        "    SystemExit: 3\n    At: {folder}/program_n.py:1 (<module>)",
    ),
    (
        ["program_o", "--mesh", "dp=4"],
        "program_o: f: the hint of parameter 'x' names 'Undefined', which is not defined\n\n"
        "At: program_o.py:5 (f)\n"
        "Hint: define 'Undefined' above f; a local name must be defined in the function that encloses f",
    ),
    (
        ["program_g", "--mesh", "dp=4", "--arg", "0.5"],
        "--arg 0.5: '0.5' is not a name and a value, as in scale=0.5",
    ),
    (["program_g", "--mesh", "dp=65536,tp=65536"], "--mesh dp=65536,tp=65536: a mesh has at most 2147483647 devices"),
    (["program_g", "--mesh", THOUSANDS], f"--mesh {THOUSANDS[:20]}...: a mesh has at most 2147483647 devices"),
    (["program_g", "--mesh", "dp=4", "--size", DIGITS], f"--size {DIGITS}: a size has at most 18 digits"),
    (
        ["program_g", "--mesh", "dp=4", "--size", THOUSANDS],
        f"--size {THOUSANDS[:20]}...: a size has at most 18 digits",
    ),
]


@pytest.mark.parametrize(("arguments", "message"), WRONG_USE)
def test_what_cannot_be_read_is_said(arguments, message, module, capsys, tmp_path):
    module("program_g", PROGRAM)
    module("program_h", "1 / 0")
    module("program_n", "raise SystemExit(3)")
    module(
        "program_o",
        """
        from typedshmap import Array, Float, typed_shard_map

        @typed_shard_map
        def f(x: "Undefined") -> Float[Array, "b"]: ...
        """,
    )
    code, out, err = run(capsys, *arguments)
    assert (code, out, err) == (2, "", f"check: {message.replace('{folder}', str(tmp_path))}\n")


def test_a_missing_mesh_is_asked_for_by_an_example(capsys):
    with pytest.raises(SystemExit, match="2"):
        main(["check", "program_g", "--numerics"])
    message = "the following arguments are required: --mesh dp=4,tp=2, for axes of these sizes; see --help\n"
    assert capsys.readouterr().err.endswith(f" check: {message}")


@pytest.mark.parametrize("option", ["--seed", "--devices"])
@pytest.mark.parametrize("number", ["-1", "x", "9" * 5000])
def test_a_number_that_cannot_be_read_is_said_in_one_line(option, number, capsys):
    with pytest.raises(SystemExit, match="2"):
        main(["check", "program_g", "--mesh", "dp=4", option, number])
    short = number if len(number) < 20 else f"{number[:20]}..."
    problem = f"argument {option}: '{short}' is not a whole number of at most 18 digits; see --help"
    assert capsys.readouterr().err == f"python -m typedshmap check: {problem}\n"


def test_a_reader_that_has_gone_ends_it_quietly(module, capsys, monkeypatch):
    name = module("program_p", PROGRAM)
    reading, writing = os.pipe()
    os.close(reading)
    with os.fdopen(writing, "w") as stdout:
        monkeypatch.setattr(sys, "stdout", stdout)
        assert main(["check", f"{name}:helper", "--mesh", "dp=4"]) == 1
    assert capsys.readouterr().err == ""


def command(tmp_path: Path, *arguments: str) -> subprocess.CompletedProcess:
    environment = {name: value for name, value in os.environ.items() if name not in ("JAX_PLATFORMS", "XLA_FLAGS")}
    environment["PYTHONPATH"] = str(Path(__file__).parents[2])
    call = [sys.executable, "-m", "typedshmap", "check", *arguments]
    return subprocess.run(call, cwd=tmp_path, env=environment, capture_output=True, encoding="utf-8", timeout=200)


@pytest.mark.slow
def test_a_machine_without_devices_has_virtual_ones_as_many_as_the_first_mesh(tmp_path):
    (tmp_path / "program.py").write_text(PROGRAM, encoding="utf-8")
    done = command(
        tmp_path, "program:good", "--mesh", "dp=4,tp=2", "--mesh", "dp=4096,tp=16", "--size", "b=8192 m=4 f=32"
    )
    assert (done.returncode, done.stdout) == (
        0,
        "ok     good  dp=4, tp=2  (b=8192, m=4, f=32)\n"
        "ok     good  dp=4096, tp=16  (b=8192, m=4, f=32)\n"
        "1 function on 2 meshes: all right\n",
    )
    assert "check: " not in done.stderr
    fewer = command(tmp_path, "program:good", "--mesh", "dp=4", "--numerics")
    assert fewer.returncode == 2 and "it found 4 devices; --devices gives another number" in fewer.stderr
    ran = command(tmp_path, "program:good", "--mesh", "dp=4,tp=2", "--numerics")
    assert ran.returncode == 0 and "same   good  on one device and on dp=4, tp=2" in ran.stdout


def test_the_command_of_the_documentation_checks_the_quickstart(monkeypatch, capsys):
    root = Path(__file__).parents[2]
    monkeypatch.chdir(root)
    page = (root / "docs" / "verify.md").read_text(encoding="utf-8").replace("\\\n", "")
    commands = re.findall(r"^python -m typedshmap check (examples/.*)$", page, re.MULTILINE)
    assert commands
    for words in commands:
        code, out, err = run(capsys, *shlex.split(words))
        assert (code, err) == (0, "") and out.endswith("1 function on 2 meshes: all right\n")


def test_a_helper_of_manual_regions_is_mapped_over_the_mesh(module, capsys):
    name = module(
        "program_i",
        """
        import jax
        import jax.numpy as jnp
        from typedshmap import Array, Float, typed

        @typed
        def part(x: Float[Array, "[b/dp] d"]) -> Float[Array, "+dp"]:
            return jnp.sum(x)

        @typed
        def mean(x: Float[Array, "[b/dp] d"]) -> Float[Array, ""]:
            return jax.lax.pmean(jnp.mean(x), "dp")

        @typed
        def of_global_arrays(x: Float[Array, "[b/dp] d"]) -> Float[Array, ""]:
            return jnp.mean(x)

        @typed
        def local(x: Float[Array, "[b/dp] d"]) -> Float[Array, ""]:
            return jnp.mean(x) + 0 * jax.lax.psum(1, "dp")
        """,
    )
    for function in ("part", "mean", "of_global_arrays"):
        code, out, _ = run(capsys, f"{name}:{function}", "--mesh", "dp=4", "--size", "b=8 d=4", "--numerics")
        assert code == 0 and out.splitlines()[0] == f"ok     {function}  dp=4  (b=8, d=4)"
    code, out, _ = run(capsys, f"{name}:local", "--mesh", "dp=4", "--size", "b=8 d=4")
    assert code == 1 and "VaryingError: local: return value varies over 'dp'" in out


def test_what_the_command_line_cannot_write_is_given_by_a_mark(module, capsys):
    name = module(
        "program_l",
        """
        from collections.abc import Callable
        from typing import NamedTuple
        import optax
        from typedshmap import Array, Float, Like, typed_jit, typed_shard_map
        from typedshmap.testing import mesh_invariant

        class Params(NamedTuple):
            w: Float[Array, "[d/dp] h"]

        optimizer = optax.adam(0.1)

        @typed_shard_map
        def applied(f: Callable, x: Float[Array, "[b/dp]"]) -> Float[Array, "[b/dp]"]:
            return f(x)

        @mesh_invariant(steps=3, arguments={"f": abs}, b=4)
        @typed_shard_map
        def repeated(f: Callable, steps: int, x: Float[Array, "[b/dp]"]) -> Float[Array, "[b/dp]"]:
            return f(x) ** steps

        @typed_jit
        def unmarked(params: Params, state: Like[optax.OptState, Params]) -> Like[optax.OptState, Params]:
            return optimizer.update(params, state)[1]

        marked = mesh_invariant(state=optimizer.init)(typed_jit(unmarked.__wrapped__))

        """,
    )
    function = "argument 'f' (Callable) holds no arrays and has no default"
    state = (
        "argument 'state' (Like[..., Params]) has a structure that no hint describes: "
        "it needs a value, or a function of the parameters"
    )

    def left_out(name: str, problem: str, given: str) -> str:
        cure = f"give it by @mesh_invariant({given}), which is in typedshmap.testing"
        return f"left   {name}: not checked: {problem}; {cure}"

    code, out, _ = run(capsys, name, "--mesh", "dp=4", "--size", "b=8 d=8 h=3")
    assert code == 1 and out.splitlines() == [
        left_out("applied", function, "f=..."),
        left_out("unmarked", state, "state=optimizer.init"),
        "ok     repeated  dp=4  (b=8)",
        "ok     marked  dp=4  (d=8, h=3)",
        "4 functions on 1 mesh: 2 not checked",
    ]
    code, out, _ = run(capsys, f"{name}:applied", "--mesh", "dp=4", "--numerics", "--size", "b=8")
    summary = "1 function on 1 mesh: 1 not checked"
    assert code == 1 and out.splitlines() == [left_out("applied", function, "f=..."), summary]
    assert run(capsys, f"{name}:repeated", "--mesh", "dp=4", "--numerics", "--size", "b=8")[0] == 0


def test_a_static_field_without_a_default_leaves_a_function_unchecked(module, capsys):
    name = module(
        "program_static",
        """
        from dataclasses import dataclass
        import jax
        from jax.tree_util import register_dataclass
        from typedshmap import Array, Float, typed_shard_map
        from typedshmap.testing import mesh_invariant

        @dataclass
        class Layer:
            w: Float[Array, "m [f/tp]"]
            axis: str

        register_dataclass(Layer, ["w"], ["axis"])

        @typed_shard_map
        def total(layers: list[Layer]) -> Float[Array, "m"]:
            return jax.lax.psum(sum(layer.w.sum(1) for layer in layers), layers[0].axis)

        given = [Layer(jax.numpy.ones((4, 8)), "tp")]
        marked = mesh_invariant(layers=given)(typed_shard_map(total.__wrapped__))
        """,
    )
    code, out, _ = run(capsys, name, "--mesh", "tp=4", "--size", "m=4 f=8")
    problem = "argument 'layers' (list) cannot be made from its hints: layers[0].axis holds no array and has"
    cure = "no default; give it by @mesh_invariant(layers=...), which is in typedshmap.testing"
    assert code == 1 and out.splitlines() == [
        f"left   total: not checked: {problem} {cure}",
        "ok     marked  tp=4  (m=4, f=8)",
        "2 functions on 1 mesh: 1 not checked",
    ]


def test_a_mark_gives_arguments_and_options(module, capsys):
    name = module(
        "program_j",
        """
        import jax
        from typedshmap import Array, Float, Key, typed_shard_map
        from typedshmap.testing import mesh_invariant

        @mesh_invariant(config={"scale": 2.0}, exclude="[1]", b=4, trials=1)
        @typed_shard_map
        def noisy(x: Float[Array, "[b/dp]"], key: Key[Array, ""], config: dict) -> tuple[
            Float[Array, "[b/dp]"], Float[Array, "[b/dp]"]
        ]:
            own = jax.random.fold_in(key, jax.lax.axis_index("dp"))
            return x * config["scale"], jax.random.normal(own, x.shape)
        """,
    )
    code, out, _ = run(capsys, name, "--mesh", "dp=4", "--numerics")
    assert code == 0 and out.splitlines()[1] == "same   noisy  on one device and on dp=4"
    assert run(capsys, name, "--mesh", "dp=8", "--numerics")[0] == 0, "its size is for its own meshes"
    assert run(capsys, name, "--mesh", "dp=4", "--size", "b=6")[0] == 1


WITHOUT_ARRAYS = """
import jax.numpy as jnp
from typedshmap import Array, Float, typed_jit, typed_shard_map

@typed_jit
def init(rows: int = 8) -> dict[str, Float[Array, "[b/dp] d"]]:
    return {"w": jnp.ones((rows, 4))}

@typed_shard_map
def scaled(x: Float[Array, "[b/dp] d"], scale=2.0, *rest, flag=True, **more) -> Float[Array, "[b/dp] d"]:
    return x * scale
"""


@pytest.mark.parametrize("verb", ["check", "explain"])
def test_a_function_without_arrays_and_one_with_options_are_right(verb, module, capsys):
    name = module(f"without_arrays_{verb}", WITHOUT_ARRAYS)
    assert main([verb, name, "--mesh", "dp=4,tp=2", "--size", "b=8", "--size", "d=4"]) == 0
    out = capsys.readouterr().out
    assert ("init  dp=4, tp=2" in out) or ("init on dp=4, tp=2" in out)
    assert "FAIL" not in out
