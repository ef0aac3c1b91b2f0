"""A program is waited for no longer than is allowed, and not in silence."""

import subprocess
import sys
import time

import pytest

from typedshmap.testing.waiting import TookTooLong, wait_for
from typedshmap.tools import progress as module
from typedshmap.tools.progress import progress


def test_what_a_program_returns_or_raises_comes_through():
    assert wait_for(lambda: 3, 5.0, 5.0) == 3
    with pytest.raises(ZeroDivisionError):
        wait_for(lambda: 1 // 0, 5.0, 5.0)


@pytest.mark.parametrize(("seconds", "idle"), [(0.1, 60.0), (60.0, 0.1)], ids=["too long", "nothing computed"])
def test_a_program_that_waits_is_given_up(seconds, idle):
    began = time.monotonic()
    with pytest.raises(TookTooLong):
        wait_for(lambda: time.sleep(20), seconds, idle)
    assert time.monotonic() - began < 10


WAITING = """
import time
from typedshmap.testing.waiting import TookTooLong, end_if_waiting, wait_for

end_if_waiting(1)
try:
    wait_for(lambda: time.sleep(600), 0.1, 60.0)
except TookTooLong:
    print("given up")
    end_if_waiting(3)
"""


@pytest.mark.slow
def test_a_process_ends_though_a_program_waits():
    found = subprocess.run([sys.executable, "-c", WAITING], capture_output=True, text=True, timeout=300)
    assert (found.returncode, found.stdout, found.stderr) == (3, "given up\n", "")


def test_a_program_that_computes_is_not_taken_for_one_that_waits():
    def compute() -> int:
        ends, count = time.process_time() + 1.1, 0
        while time.process_time() < ends:
            count += 1
        return count

    assert wait_for(compute, 60.0, 0.9) > 0


def test_what_is_under_way_is_told_on_stderr_once_it_takes_long(monkeypatch, capsys):
    monkeypatch.setattr(module, "_SILENCE", 0.05)
    with progress("verify: f") as report:
        report("on dp=2, seed 0")
        time.sleep(0.4)
    told = capsys.readouterr()
    assert told.out == ""
    assert told.err.startswith("verify: f: on dp=2, seed 0, after 0 s\n")
    with progress("verify: f"):
        pass
    assert capsys.readouterr().err == ""
