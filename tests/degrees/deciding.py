"""Whether a program is right: it is run on one device and on several meshes.

``python tests/degrees/deciding.py`` decides what is not decided in `decided.txt` or was edited since; with ``--all``
everything.
"""

import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Literal, NamedTuple

if __name__ == "__main__":
    sys.path[:0] = [str(Path(__file__).parents[1]), str(Path(__file__).parents[2])]
    import environment  # noqa: F401 (eight devices)

import jax
import numpy as np
from jax.sharding import Mesh, PartitionSpec
from registry import ARGUMENTS, REGISTRY, Program

Verdict = Literal["right", "wrong", "refused"]
DECIDED = Path(__file__).with_name("decided.txt")
SEEDS = (0, 1)
MESHES = {1: ((2,), (3,), (4,)), 2: ((2, 1), (1, 2), (2, 2), (2, 3), (4, 2))}


def spec_of(hint: Any) -> PartitionSpec:
    """The sharding that the brackets of a hint state, read without the library."""
    dims = (dim.strip("[]").partition("/")[2] for dim in hint.dim_str.split() if not dim.startswith(("+", "~")))
    return PartitionSpec(*(tuple(axes.split(",")) if axes else None for axes in dims))


def global_values(program: Program, seed: int) -> list[Any]:
    rng = np.random.default_rng(seed)
    return [_drawn(name, rng, seed) for name in program.arguments]


def _drawn(name: str, rng: np.random.Generator, seed: int) -> Any:
    hint, shape = ARGUMENTS[name]
    if name == "key":
        return jax.random.key(seed)
    if hint.__name__.startswith("Int"):
        return rng.integers(0, 8 if name == "labels" else 24, shape).astype(np.int32)
    return rng.normal(size=shape).astype(np.float32)


def runner(program: Program, shape: tuple[int, ...], check_vma: bool) -> Callable[..., list[np.ndarray]]:
    """What runs a program on a mesh: a function of ``c`` and of the global arguments."""
    count = int(np.prod(shape))
    mesh = Mesh(np.array(jax.devices()[:count]).reshape(shape), program.axes)
    out_specs = jax.tree.map(spec_of, program.hint, is_leaf=lambda hint: hasattr(hint, "dim_str"))

    @jax.jit
    def run(c: Any, *args: Any) -> Any:
        function = program.fresh(c)
        in_specs = tuple(map(spec_of, program.in_types))
        return jax.shard_map(function, mesh=mesh, in_specs=in_specs, out_specs=out_specs, check_vma=check_vma)(*args)

    return lambda c, *args: [np.asarray(leaf) for leaf in jax.tree.leaves(jax.block_until_ready(run(c, *args)))]


def decide(program: Program, check_vma: bool, reference: Program | None = None) -> Verdict:
    """Run a program, with each constant, on one device and on several meshes.

    Args:
      reference: the program that runs on the one device, if it is another one.

    Raises:
      AssertionError: where what is found depends on the constant, or the program does not give numbers on one device.
    """
    try:
        on_one = runner(reference or program, (1,) * len(program.axes), check_vma)
        expected = {(c, seed): on_one(c, *global_values(program, seed)) for c in program.constants for seed in SEEDS}
        on_more = [runner(program, shape, check_vma) for shape in MESHES[len(program.axes)]]
        got = {key: [run(key[0], *global_values(program, key[1])) for run in on_more] for key in expected}
    except (NameError, TypeError, ValueError, NotImplementedError, jax.errors.JAXTypeError):
        return "refused"
    for leaf in (leaf for leaves in expected.values() for leaf in leaves):
        assert np.isfinite(leaf).all(), f"{program.name}: not finite on one device"
    verdicts = set[bool]()
    for c in program.constants:
        keys = [(c, seed) for seed in SEEDS]
        verdicts.add(all(_agree(program, expected[key], leaves) for key in keys for leaves in got[key]))
    assert len(verdicts) == 1, f"{program.name}: what it is depends on the constant"
    return "right" if verdicts == {True} else "wrong"


def _agree(program: Program, expected: list[np.ndarray], got: list[np.ndarray]) -> bool:
    if program.is_drawn:
        return all(len(np.unique(np.round(leaf, 5), axis=0)) == len(leaf) for leaf in got)
    pairs = list(zip(expected, got, strict=True))
    return all(a.shape == b.shape and np.allclose(a, b, rtol=1e-3, atol=1e-4) for a, b in pairs)


class Decided(NamedTuple):
    """What was decided of a program, without ``check_vma`` and with it, and of which source."""

    digest: str
    plain: Verdict
    typed: Verdict

    def verdict(self, check_vma: bool) -> Verdict:
        return self.typed if check_vma else self.plain


def read_decided() -> dict[str, Decided]:
    lines = DECIDED.read_text().splitlines() if DECIDED.exists() else []
    rows = (line.split(maxsplit=3) for line in lines)
    return {name: Decided(digest, plain, typed) for digest, plain, typed, name in rows}  # type: ignore[arg-type]


def write_decided(decided: dict[str, Decided]) -> None:
    lines = (f"{row.digest} {row.plain:8}{row.typed:8}{name}" for name, row in decided.items())
    DECIDED.write_text("\n".join(lines) + "\n")


def decide_all(is_anew: bool) -> Iterator[str]:
    """Decide the programs of the registry, in its order, and drop what it no longer has; yield what was decided."""
    known = {} if is_anew else read_decided()
    decided = {name: known[name] for name in REGISTRY if name in known}
    for name, program in REGISTRY.items():
        if name in decided and decided[name].digest == program.digest:
            continue
        try:
            decided[name] = Decided(program.digest, decide(program, False), decide(program, True))
            yield f"{decided[name].plain:8}{decided[name].typed:8}{program.family}: {name}"
        except Exception as error:
            decided.pop(name, None)
            yield f"FAILED  {program.family}: {name}: {type(error).__name__}: {str(error)[:300]}"
    write_decided({name: decided[name] for name in REGISTRY if name in decided})


if __name__ == "__main__":
    import families  # noqa: F401 (fills the registry)

    for line in decide_all("--all" in sys.argv):
        print(line, flush=True)
