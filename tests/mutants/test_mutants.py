"""Every mutant is found, by whom the table says, and reported in a first line that is worth reading."""

import re
from collections import Counter
from functools import cache
from itertools import groupby
from textwrap import dedent
from typing import Any

import jax
import pytest
from catalogue import MUTANTS, WRONG_ON_ONE_DEVICE, first_differences, label, named, reported, said, without_numbers
from mutation import Program, function_of
from tiers import slow
from trying import called, close, first_line, found_wrong, on_one_device
from wrong import Mutant

from typedshmap import TypedShmapError

# What is suspect beside what is wrong with them is not the table's.
pytestmark = pytest.mark.filterwarnings("ignore::typedshmap.SuspectWarning")

# Some full messages, by a mutant and its setting of check_vma.
MESSAGES = {
    ("T1", False): """
        mlp: return value varies over 'tp', which its hint does not mention

            return: Float32[Array, "[batch/dp] model"]
            got f32[4,12]{V:(dp,tp)} per shard

        Mesh: dp=2, tp=2
        At: classic_tensor_mlp.py:34 (mlp)
        Hint: the contraction over ff (sharded over 'tp') at classic_tensor_mlp.py:34 leaves partial sums: psum over 'tp' of h @ w.down
    """,  # noqa: E501
    ("F5", True): """
        spectrum: return[2] is sharded over 'p', 'q' in dim 0, but its hint says sharded over 'q', 'p'

            return[2]: Float32[Array, "[rows*columns/q,p]"]
                                       ^^^^^^^^^^^^^^^^^^
            got f32[96]{V:(p,q)} per shard

        Mesh: p=2, q=2
        At: classic_fourier.py:42 (spectrum)
        Hint: write the actual sharding, or change it with reshard(x, ...)
    """,
    ("T17", True): """
        by_hand: return[0] depends on the mesh: it is 2 times what one device gives, the size of 'tp': … on tp=2, not …

            it differs, by up to …; rounding in float32 explains at most …
            'tp' alone causes the difference
            differs on tp=2; tp=2, dp=2
            agrees on dp=2
            wrong, too: return[1].up, return[1].up_bias, return[1].down, return[1].down_bias

        First difference: classic_tensor_mlp.py:70 (by_hand)
            psum: float32[] per shard, off by the number of shards over 'tp'
            operand 0: float32[] per shard, as on one device
            read as: the same on every shard of 'tp', and is 2 times too large on tp=2: it grows with 'tp'

        Sizes: model=8, ff=12, batch=6
        Again: seed=0
        Hint: is a sum over 'tp' taken twice, is something divided by a shard's size, or does every shard count it?
    """,
    ("A1", True): """
        attention: return value depends on the mesh: at … it is … on sp=3, but … on one device

            240 of 720 entries differ, by up to …; rounding in float32 explains at most …
            along 'sp' only shard 1 of 3 is wrong
            'sp' alone causes the difference
            differs on sp=3; dp=2, sp=3
            agrees on dp=2

        First difference: classic_ring_attention.py:25 (iteration)
            rem: the results equal those on one device if it is replaced by the other direction over 'sp'
            in a loop of 3 iterations, but of 1 on one device

        Sizes: batch=8, seq=15, head=6
        Again: seed=0
    """,
}

CASES = [pytest.param(m, v, id=f"{m.id}-{'checked' if v else 'unchecked'}") for m in MUTANTS for v in m.check_vma]
# Of those that need several meshes, and of the quickstart's, one per program is in the default run.
COSTLY = [m for m in MUTANTS if m.found_by == "mesh" or m.id.startswith("Q")]
ONE_PER_PROGRAM = {m.program.name: m for m in COSTLY}.values()
CASES = [slow(c) if c.values[0] in COSTLY and c.values[0] not in ONE_PER_PROGRAM else c for c in CASES]
# But for the quickstart's, which take long to compile.
ON_MESHES = [m for m in MUTANTS if m.found_by == "mesh" and m.id[0] != "Q" and m.id not in WRONG_ON_ONE_DEVICE]
# Beside the edited line, a line that it calls, or one behind it that has the values of what Python computed.
KINDS_OF_PLACES = {"edited": 59, "called": 2, "after": 16}
FOUND_BY = {"types": TypedShmapError, "mesh": AssertionError, "JAX": Exception}


@pytest.mark.sample(5)
@pytest.mark.parametrize(("mutant", "check_vma"), CASES)
def test_a_mutant_is_found_and_reported(mutant: Mutant, check_vma: bool) -> None:
    error = found_wrong(mutant, check_vma)
    assert isinstance(error, FOUND_BY[mutant.found_by]), f"not found: {mutant}" if error is None else error
    assert reported(first_line(error)) == said(mutant, check_vma)
    if (whole := MESSAGES.get((mutant.id, check_vma))) is not None:
        assert without_numbers(str(error)) == dedent(whole).strip()
    if mutant.found_by == "mesh":
        place, written = named(mutant, check_vma, str(error)), first_differences()[label(mutant, check_vma)]
        assert place == written or not (written.startswith("edited") or place.startswith("before"))
    if mutant.found_by == "JAX":
        assert any(note.startswith("typedshmap: in ") for note in error.__notes__)


@cache
def right_on_one_device(program: Program) -> Any:
    return called(program, function_of(program), on_one_device(program))[0]


@pytest.mark.sample(24)
@pytest.mark.parametrize("mutant", ON_MESHES, ids=lambda mutant: mutant.id)
def test_what_only_another_mesh_finds_is_right_on_one_device(mutant: Mutant) -> None:
    function = function_of(mutant.program, (mutant.old, mutant.new), check_vma=mutant.check_vma[0])
    got, _ = called(mutant.program, function, on_one_device(mutant.program))
    # As leaves, since each module has classes of its own.
    close(jax.tree.leaves(got), jax.tree.leaves(right_on_one_device(mutant.program)))


def test_of_most_mutants_the_first_difference_is_the_edited_line_and_never_one_before_it() -> None:
    written = first_differences()
    assert list(written) == [label(m, check_vma) for m in MUTANTS if m.found_by == "mesh" for check_vma in m.check_vma]
    kinds = Counter(place.split()[0] for place in written.values())
    assert kinds == KINDS_OF_PLACES


def test_there_are_forty_mutants_and_more_of_fifteen_programs() -> None:
    ids = [mutant.id for mutant in MUTANTS]
    assert len(set(ids)) == len(ids) >= 40
    letters = [re.sub(r"\d", "", id) for id in ids]
    assert [letter for letter, _ in groupby(letters)] == list("DTAEXPHFNWVBLCRQ")


def test_the_numbers_of_the_programs_that_jax_accepts_silently_all_appear() -> None:
    kinds = {mutant.kind for mutant in MUTANTS}
    assert {"K6", "K7", "K8", "K14", "K17", "K21", "K22", "K25", "K27"} <= kinds
