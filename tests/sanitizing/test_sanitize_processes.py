"""Under several processes all of them raise, whichever has the device that differs or runs another program."""

import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.slow
LIMIT = 300


@pytest.fixture(scope="module")
def together() -> str:
    """What both processes printed."""
    script = Path(__file__).parent / "two_processes.py"
    done = subprocess.run(
        [sys.executable, str(script)], capture_output=True, encoding="utf-8", timeout=LIMIT, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.mark.parametrize("way", ["computed", "jax.jit", "typed_jit"])
@pytest.mark.parametrize(("device", "where"), [("1", "dp=0, tp=1"), ("6", "dp=3, tp=0")])
def test_both_processes_raise_for_a_device_of_one(way: str, device: str, where: str, together: str) -> None:
    name = "scaled" if way == "typed_jit" else "total"
    owner = int(device) // 4
    for process in (0, 1):
        line = next(each for each in together.splitlines() if each.startswith(f"process {process}: {way} {device}:"))
        assert f"{name}: argument 'w' differs over 'dp'" in line
        assert where in line and f"of process {owner}) differs bitwise from the other 3" in line
        assert f"process {process}: {way} right: \n" in together


def test_each_of_a_hundred_flipped_bits_is_found_by_both(together: str) -> None:
    assert "process 0: found: 100 of 100\n" in together
    assert "process 1: found: 100 of 100\n" in together


def test_both_processes_raise_for_another_program(together: str) -> None:
    for process in (0, 1):
        assert (
            f"process {process}: times: scaled: static argument 'times' is 3 on process 1, but 2 on process 0\n"
            in together
        )
        assert f"process {process}: text: other: process 1 runs another program than process 0, from line" in together
