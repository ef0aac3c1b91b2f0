"""``pytest --typedshmap-verify`` in projects of their own, each in a process of its own."""

import sys

import pytest

from typedshmap import Array, Float, StructureError, typed_shard_map
from typedshmap.testing.marks import find_mark, marked_functions, mesh_invariant

pytest_plugins = ["pytester"]

CONFTEST = """
import os
import sys

assert "jax" not in sys.modules and "typedshmap" not in sys.modules, "imported before conftest.py"
os.environ["JAX_PLATFORMS"] = "cpu"
os.environ["XLA_FLAGS"] = "--xla_force_host_platform_device_count=2"
"""
MODEL = """
import jax

from typedshmap import Array, Float, typed, typed_shard_map
from typedshmap.testing.marks import mesh_invariant

X = Float[Array, "[batch/dp] model"]


@mesh_invariant(trials=1)
@typed_shard_map
def local(x: X) -> X:
    return x - x.mean(0)


@jax.jit
@mesh_invariant(trials=1, batch=8)
@typed_shard_map
def right(x: X) -> X:
    return x - jax.lax.pmean(x.mean(0), "dp")


@mesh_invariant
@typed_shard_map
def ill_typed(x: X) -> Float[Array, "model"]:
    return x.sum(0)


@typed_shard_map
def unmarked(x: X) -> X:
    return x - x.mean(0)
"""


@pytest.fixture
def project(pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch) -> pytest.Pytester:
    # Whatever other plugins there are: ours is found by its entry point.
    monkeypatch.setenv("PYTEST_DISABLE_PLUGIN_AUTOLOAD", "1")
    pytester.makeini("[pytest]\nfilterwarnings = error\n")
    pytester.makeconftest(CONFTEST)
    pytester.makepyfile(model=MODEL, test_model="from model import right\n\n\ndef test_it():\n    assert right\n")
    return pytester


def run(project: pytest.Pytester, *args: str) -> pytest.RunResult:
    return project.runpytest_subprocess("-p", "typedshmap", "-p", "no:cacheprovider", *args, timeout=200)


@pytest.mark.slow
@pytest.mark.parametrize(("flags", "count"), [("", 8), ("--xla_force_host_platform_device_count=4", 4)])
def test_there_are_eight_devices_unless_the_environment_says_otherwise(project, monkeypatch, flags, count):
    project.makeconftest("")
    for name in ("JAX_PLATFORMS", "JAX_NUM_CPU_DEVICES"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("XLA_FLAGS", flags)
    devices = f"(jax.default_backend(), jax.device_count()) == ('cpu', {count})"
    project.makepyfile(test_model=f"import jax\nfrom model import right\n\n\ndef test_it():\n    assert {devices}\n")
    run(project, "--typedshmap-verify", "-k", "test_it").assert_outcomes(passed=1, deselected=3)


def test_every_marked_function_of_an_imported_module_is_a_test(project):
    result = run(project, "--typedshmap-verify", "-v")
    result.assert_outcomes(passed=2, failed=2)
    result.stdout.fnmatch_lines(
        [
            "model.py::local?mesh-invariant? FAILED*",
            "model.py::right?mesh-invariant? PASSED*",
            "model.py::ill_typed?mesh-invariant? FAILED*",
            "*_ local?mesh-invariant? _*",
            "AssertionError: local: return value depends on the mesh: at *",
            "    'dp' alone causes the difference",
            "Again: seed=0",
            "*_ ill_typed?mesh-invariant? _*",
            "VaryingError: ill_typed: return value varies over 'dp', which its hint does not mention",
            "assert_mesh_invariant: ill_typed on the mesh dp=2",
        ]
    )
    result.stdout.no_fnmatch_line("*verb.py*")
    result.stdout.no_fnmatch_line("*JAX has removed its internal frames*")


@pytest.mark.slow
def test_an_ini_option_names_modules_that_no_test_imports(project):
    project.makepyfile(test_model="def test_it():\n    pass\n")
    project.makeini("[pytest]\npythonpath = .\ntypedshmap_verify = model\n")
    run(project, "--typedshmap-verify", "-k", "right").assert_outcomes(passed=1, deselected=3)


NOT_THERE = "typedshmap_verify: cannot import 'nowhere': No module named 'nowhere'"
NONE_MARKED = (
    "--typedshmap-verify: no function is marked by mesh_invariant, neither in a module that the collected tests "
    "import, nor in one that the ini option typedshmap_verify names"
)
NO_BASELINE = "--typedshmap-baseline none.json: there is no such file"


@pytest.mark.slow
@pytest.mark.parametrize(
    ("ini", "flags", "message"),
    [
        ("typedshmap_verify = nowhere", "--typedshmap-verify", NOT_THERE),
        ("", "--typedshmap-verify", NONE_MARKED),
        ("", "--typedshmap-audit --typedshmap-baseline none.json", NO_BASELINE),
    ],
)
def test_misuse_is_reported(project, ini, flags, message):
    project.makeini(f"[pytest]\n{ini}\n")
    project.makepyfile(test_model="def test_it():\n    pass\n")
    result = run(project, *flags.split())
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    result.stderr.fnmatch_lines([f"ERROR: {message}"])


@pytest.mark.slow
def test_functions_are_collected_without_being_run_and_selected_by_name(project):
    result = run(project, "--typedshmap-verify", "--collect-only", "-q", "-k", "mesh-invariant and not ill_typed")
    result.stdout.fnmatch_lines(["model.py::local?mesh-invariant?", "model.py::right?mesh-invariant?"])
    result.stdout.fnmatch_lines(["2/4 tests collected (2 deselected)*"])
    result.stdout.no_fnmatch_line("*ill_typed*")


@pytest.mark.slow
def test_an_exception_of_the_body_is_shown_with_its_traceback(project):
    project.makepyfile(
        model=MODEL.partition("@mesh_invariant(trials=1)")[0]
        + "@mesh_invariant\n@typed_shard_map\ndef broken(x: X) -> X:\n    raise RuntimeError('no')\n",
        test_model="import model\n",
    )
    result = run(project, "--typedshmap-verify")
    result.assert_outcomes(failed=1)
    result.stdout.fnmatch_lines(["*raise RuntimeError('no')", "E*RuntimeError: no"])


# The mark


def test_a_mark_leaves_the_function_as_it_is():
    @typed_shard_map
    def f(x: Float[Array, "[n/dp]"]) -> Float[Array, "[n/dp]"]:
        return x

    assert mesh_invariant(f) is f
    mark = find_mark(f)
    assert mark is not None and mark.meshes is None and mark.options == {}
    assert mesh_invariant(meshes=["dp=2"], grad=True, n=8)(f) is f
    mark = find_mark(f)
    assert mark is not None and mark.meshes == ["dp=2"] and mark.options == {"grad": True, "n": 8}
    assert mark.verify(f).seeds == (0, 1, 2)


def test_a_mark_is_above_the_decorator():
    with pytest.raises(StructureError, match="mesh_invariant: expects a function made by typed_shard_map"):
        mesh_invariant(lambda x: x)


def test_a_marked_function_is_found_once_where_it_is_defined():
    from types import ModuleType

    @mesh_invariant
    @typed_shard_map
    def f(x: Float[Array, "[n/dp]"]) -> Float[Array, "[n/dp]"]:
        return x

    home, other, lazy = ModuleType(f.__module__), ModuleType("a_first"), ModuleType("lazy")
    home.__dict__["f"] = home.__dict__["g"] = other.__dict__["f"] = f
    lazy.__dict__["thing"] = _Angry()
    assert [(place.module, place.name) for place in marked_functions([other, lazy, home])] == [(home, "f")]
    assert [(place.module, place.name) for place in marked_functions([other, lazy])] == [(other, "f")]


class _Angry:
    """Raises whatever it is asked."""

    def __getattribute__(self, name: str) -> object:
        raise RuntimeError("not there yet")


PLAIN = """
import jax
import jax.numpy as jnp
from jax.sharding import PartitionSpec as P


def forgotten(x, w):
    return x @ w


def twice(x):
    return jax.lax.psum(jax.lax.psum(x.sum(), "tp"), "tp")


def trace(f, *args):
    mesh = jax.make_mesh((2,), ("tp",), axis_types=(jax.sharding.AxisType.Auto,))
    specs = (P(None, "tp"), P("tp"))[-len(args):]
    return jax.eval_shape(jax.shard_map(f, mesh=mesh, in_specs=specs, out_specs=P(), check_vma=False), *args)
"""
AUDITED = """
import jax.numpy as jnp
import plain
import pytest


@pytest.mark.parametrize("n", [4, 8])
def test_it(n):
    assert plain.trace(plain.forgotten, jnp.ones((4, n)), jnp.ones((n, 4)))
"""
UNREDUCED = (
    "plain.py:7: error?unreduced? forgotten: return value varies over 'tp', which its PartitionSpec does not mention; "
    "the contraction over a dim sharded over 'tp' at plain.py:7 leaves partial sums: psum over 'tp'"
)


@pytest.fixture
def audited(project: pytest.Pytester) -> pytest.Pytester:
    project.makepyfile(plain=PLAIN, test_model=AUDITED)
    return project


@pytest.mark.slow
@pytest.mark.parametrize("workers", [(), pytest.param(("-p", "xdist", "-n", "2"), marks=pytest.mark.slow)])
def test_an_audit_lists_each_finding_once_at_the_end_and_fails_for_errors(audited, workers):
    result = run(audited, "--typedshmap-audit", *workers)
    result.assert_outcomes(passed=2)
    assert result.ret == pytest.ExitCode.TESTS_FAILED
    last = "typedshmap audit: 1 region, 1 read whole; 1 error, 0 suspects"
    result.stdout.fnmatch_lines(["*= typedshmap audit =*", UNREDUCED, last])
    assert result.stdout.str().count("plain.py:7: error") == 1


SHIFTED = """
import jax
import jax.numpy as jnp
import pytest
from jax.sharding import PartitionSpec as P


def before(x):
    return x - jnp.concatenate([0 * x[:1], x[:-1]])


@pytest.mark.parametrize("rows", [4, 8])
def test_one(rows):
    mesh = jax.make_mesh((2,), ("sp",), axis_types=(jax.sharding.AxisType.Auto,))
    f = jax.shard_map(before, mesh=mesh, in_specs=P("sp"), out_specs=P("sp"))
    jax.block_until_ready(jax.jit(f)(jnp.arange(1.0, rows + 1)))
"""


@pytest.mark.slow
@pytest.mark.parametrize("workers", [(), ("-p", "xdist", "-n", "1")])
def test_what_depends_on_the_mesh_is_found_with_the_flag_only(project, workers):
    project.makepyfile(test_model=SHIFTED)
    assert workers or run(project, "--typedshmap-audit").ret == pytest.ExitCode.OK
    result = run(project, "--typedshmap-invariance", *workers)
    assert result.ret == pytest.ExitCode.TESTS_FAILED
    line = "test_model.py:7: error?invariance? before: return value depends on the mesh: *"
    result.stdout.fnmatch_lines([line, "typedshmap audit: 1 region, 1 read whole; 1 error, 1 suspect"])
    assert result.stdout.str().count("error[invariance]") == 1


@pytest.mark.slow
def test_suspects_do_not_fail_a_run(audited):
    audited.makepyfile(test_model="import plain\n\n\ndef test_it():\n    plain.trace(plain.twice, plain.jnp.ones(8))\n")
    result = run(audited, "--typedshmap-audit")
    assert result.ret == pytest.ExitCode.OK
    result.stdout.fnmatch_lines(["plain.py:11: suspect?double-sum? twice: *"])


@pytest.mark.slow
def test_a_baseline_silences_what_is_known(audited):
    audited.makeconftest(CONFTEST.replace("assert ", "# "))
    command = ["-m", "typedshmap", "audit", "--devices", "2", "--write-baseline", "known.json", "-m", "pytest"]
    audited.run(sys.executable, *command, "-q", "-p", "no:cacheprovider")
    result = run(audited, "--typedshmap-audit", "--typedshmap-baseline", "known.json")
    assert result.ret == pytest.ExitCode.OK
    result.stdout.fnmatch_lines(["typedshmap audit: 1 region, 1 read whole; 0 errors, 0 suspects"])


@pytest.mark.slow
def test_without_a_flag_nothing_is_verified_or_audited(audited):
    audited.makepyfile(test_model=f"import model\n{AUDITED}")
    result = run(audited)
    result.assert_outcomes(passed=2)
    assert result.ret == pytest.ExitCode.OK
    result.stdout.no_fnmatch_line("*typedshmap audit*")
