"""How many random small programs `prove` proves, and whether running agrees: seeds that no test draws.

    python bench/random_proofs.py --seconds 600 --first 1000

Sums and largest entries of shards that are cast, negated, combined and reduced, and shards that send each other edges
are drawn as in `tests/proving`, right ones and wrong ones. What is proved is run on meshes and must give the same. What
stays unknown says nothing, and is not run.
"""

import argparse
import os
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path

os.environ.setdefault("JAX_PLATFORMS", "cpu")
os.environ.setdefault("XLA_FLAGS", "--xla_force_host_platform_device_count=8")
TESTS = Path(__file__).parents[1] / "tests"
sys.path += [str(TESTS), str(TESTS / "proving")]

import jax  # noqa: E402
from test_bodies import function_of, is_invariant  # noqa: E402
from test_random_bodies import KINDS  # noqa: E402

from typedshmap import TypedShmapError  # noqa: E402
from typedshmap.testing import prove  # noqa: E402
from typedshmap.testing.proving import proof  # noqa: E402


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--first", type=int, default=1000, help="the first seed")
    parser.add_argument("--count", type=int, default=1700, help="how many of each kind")
    parser.add_argument("--kinds", nargs="+", default=[*KINDS], choices=KINDS, help="of which kinds")
    parser.add_argument("--seconds", type=float, default=float("inf"), help="stop after so much time of the clock")
    given = parser.parse_args()
    proof.assert_mesh_invariant = lambda *_, **__: None  # what is not proved is not run
    counts, wrong, end = Counter[tuple[str, str]](), list[tuple[str, int]](), time.monotonic() + given.seconds
    for seed in range(given.first, given.first + given.count):
        for kind in given.kinds:
            if time.monotonic() > end:
                break
            with tempfile.TemporaryDirectory() as folder:
                function = function_of(KINDS[kind](seed), Path(folder), check_vma=False)
                try:
                    verdict = prove(function).verdict
                except TypedShmapError:
                    verdict = "refused"
                if verdict == "proved" and not is_invariant(function):
                    wrong.append((kind, seed))
            counts[kind, verdict] += 1
        if seed % 20 == 0:
            jax.clear_caches()
    for (kind, verdict), count in sorted(counts.items()):
        print(f"{kind}: {count} {verdict}")
    print(
        f"{counts.total()} programs, {time.process_time():.0f} CPU seconds; proved, but not the same: {wrong or 'none'}"
    )
    sys.exit(bool(wrong))


if __name__ == "__main__":
    main()
