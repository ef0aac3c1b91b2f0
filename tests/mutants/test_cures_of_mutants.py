# ruff: noqa: E501 (an edit is a line of a program)
"""Whoever follows what is said of a mutant, to the letter, gets a program that is right, or is refused."""

import re
import warnings
from functools import cache
from typing import Any, NamedTuple

import jax
import pytest
from catalogue import MUTANTS
from edits import NotFollowedError, apply_cure, parse_cures
from mutation import Program, function_of, source_of
from tiers import slow
from trying import called, close, mesh_of
from wrong import Mutant

from typedshmap import SuspectWarning, TypedShmapError
from typedshmap.testing import inputs


class Step(NamedTuple):
    """What a message says, and the edit of the program that does it."""

    says: str
    old: str
    new: str


STEP = "    value, gradients = jax.value_and_grad(loss)(weights)\n    return"
MEAN = '    gradients = jax.lax.pmean(gradients, "dp")\n'
ROOT = "jnp.sqrt(jnp.sum((t - start) ** 2))"
SUMMED_ROOT = 'jnp.sqrt(jax.lax.psum(jnp.sum((t - start) ** 2), ("x", "y")))'
DOWN = '    h = jax.nn.relu(einsum(x, up, "[b/dp] m, m [f/tp] -> [b/dp] [f/tp]"))\n'
PATTERN = '"[b/dp] [f/tp], [f/tp] m -> [b/dp] m"'
MLP = 'def mlp(x: Stream, up: Float32[Array, "model [ff/tp]"], down: Float32[Array, "[ff/tp] model"])'
BEST = "    top, at = logits.max(-1), jnp.argmax(logits, -1) + first_id(logits)"

# By mutant, the ways that its messages name.
CURES: dict[str, list[list[Step]]] = {
    "D7": [[Step("psum over 'dp'", "jnp.sum(errors**2)", 'jax.lax.psum(jnp.sum(errors**2), "dp")')]],
    "D9": [[Step("pmean over 'dp'", STEP, STEP.replace("    return", f"{MEAN}    return"))]],
    "D10": [[Step("pmean over 'dp'", '    return updated(weights, gradients, size("batch")), jax', f'{MEAN}    return updated(weights, gradients, size("batch")), jax')]],
    "D13": [[Step("pmean over 'dp'", "return jnp.mean(jnp.sum((x @ weights.w + weights.b - y) ** 2, 1))", 'return jax.lax.pmean(jnp.mean(jnp.sum((x @ weights.w + weights.b - y) ** 2, 1)), "dp")')]],
    "T1": [[Step("psum over 'tp'", "h @ w.down", 'jax.lax.psum(h @ w.down, "tp")')]],
    "T2": [[
        Step("psum over 'tp' of h @ w.down", 'psum(h @ w.down, "dp")', 'psum(jax.lax.psum(h @ w.down, "tp"), "dp")'),
        Step("leave out the psum over 'dp'", 'jax.lax.psum(jax.lax.psum(h @ w.down, "tp"), "dp")', 'jax.lax.psum(h @ w.down, "tp")'),
    ]],
    "T5": [[Step("drop the psum", 'return x + psum(y, "tp")', "return x + y")]],
    "T13": [
        [Step("gather a dim over its minor axes first", 'jax.lax.all_gather(down, "dp", tiled=True)', 'jax.lax.all_gather(down, "tp", tiled=True)')],
        [Step("gather a dim over its minor axes first", '"[ff/dp,tp] model"', '"[ff/tp,dp] model"')],
    ],
    "T14": [
        [Step("", PATTERN, '"[b/dp] [f/tp], [f/dp] m -> [b/dp] m"')],
        [Step("", PATTERN, '"[b/dp] [f/tp], [f/tp,dp] m -> [b/dp] m"')],
        [Step("", DOWN, f'    down = jax.lax.all_gather(down, "dp", tiled=True)\n{DOWN}')],
    ],
    "T15": [[Step("pmean over 'dp'", "jnp.mean((mlp(x, w) - y) ** 2)", 'jax.lax.pmean(jnp.mean((mlp(x, w) - y) ** 2), "dp")')]],
    "T19": [[Step("psum over 'dp'", "    gradients = replace(gradients, down", '    gradients = jax.lax.psum(gradients, "dp")\n    gradients = replace(gradients, down')]],
    "E8": [[Step("write the actual sharding", '"e [c/ep] m -> [e/ep] c m")\n    mixed', '"[e/ep] c m -> e [c/ep] m")\n    mixed')]],
    "X1": [[Step("psum over 'tp'", "jnp.log(jnp.exp(logits - largest[:, None]).sum(-1))", 'jnp.log(jax.lax.psum(jnp.exp(logits - largest[:, None]).sum(-1), "tp"))')]],
    "X2": [[Step("pmax over 'tp'", "largest = jax.lax.stop_gradient(logits).max(-1)", 'largest = jax.lax.pmax(jax.lax.stop_gradient(logits).max(-1), "tp")')]],
    "X7": [[
        Step("covers only each shard's part of vocab", BEST, f'    logits = jax.lax.all_gather(logits, "tp", axis=1, tiled=True, to="invarying")\n{BEST}'),
        Step("is each shard's own", " + first_id(logits)\n    return at", "\n    return at"),
    ]],
    "X9": [[
        Step("drop '+tp'", '"[batch/dp] +tp"', '"[batch/dp]"'),
        Step("leave out the psum over 'tp'", '0.9 * jax.lax.psum(taken(logits, labels), "tp")', "0.9 * taken(logits, labels)"),
    ]],
    "X10": [[Step("psum over 'tp'", "0.9 * taken(logits, labels)", '0.9 * jax.lax.psum(taken(logits, labels), "tp")')]],
    "H12": [[Step("pmax over 'x'", "t.max()", 'jax.lax.pmax(t.max(), "x")')]],
    "F3": [[Step("write the actual sharding", '"k [c/q,p] -> [k/q,p] c"', '"k [c/p,q] -> [k/p,q] c"')]],
    "F4": [[Step("write the actual sharding", 'all_to_all(short, ("q", "p")', 'all_to_all(short, ("p", "q")')]],
    "F5": [[Step("write the actual sharding", "[rows*columns/q,p]", "[rows*columns/p,q]")]],
    "F6": [[Step("merge a sharded dim only as the major one", 'all_to_all(low, "[k/p,q] c -> k [c/p,q]").reshape(-1)', "low.reshape(-1)")]],
    "F11": [[Step("psum over 'p', 'q'", "= power.sum()", '= jax.lax.psum(power.sum(), ("p", "q"))')]],
    "F12": [[Step("psum over 'q'", 'jax.lax.psum(power.sum(), "p")', 'jax.lax.psum(jax.lax.psum(power.sum(), "p"), "q")')]],
    "N6": [[
        Step("psum over 'dp' of the gradient", "gradients + gradient)", 'gradients + jax.lax.psum(gradient, "dp"))'),
        Step("take the mean (pmean)", "else gradients)", 'else jax.lax.pmean(gradients, "dp"))'),
    ]],
    "W1": [[Step("psum or pmax of the compared value", "(residual > 1e-2) & (steps < 50)", '(jax.lax.pmax(residual, "dp") > 1e-2) & (steps < 50)')]],
    "W2": [
        [Step("psum or pmax of the compared value", "x[0] > 0", 'jax.lax.pmax(x[0], "dp") > 0')],
        [Step("move the pmean out of the branch", 'jax.lax.cond(x[0] > 0, lambda: jax.lax.pmean(x.mean(), "dp"), lambda: x.mean())', 'jax.lax.pmean(jax.lax.cond(x[0] > 0, lambda: x.mean(), lambda: x.mean()), "dp")')],
    ],
    "W3": [[Step("psum or pmax of the compared value", "(jnp.abs(state[0]).max() > 1) & (residual > 1e-2)", '(jax.lax.pmax(jnp.abs(state[0]).max(), "dp") > 1) & (jax.lax.pmax(residual, "dp") > 1e-2)')]],
    "V1": [[Step("pmax over 'tp'", "jnp.abs(w).max()", 'jax.lax.pmax(jnp.abs(w).max(), "tp")')]],
    "C1": [[Step("gather it over the axes in the order in which they shard it", 'all_gather(w, ("dp", "tp")', 'all_gather(w, ("tp", "dp")')]],
    "C2": [[Step("write the actual sharding", '"rows [model/dp,tp]"', '"rows [model/tp,dp]"')]],
    "R3": [[Step("is each shard's own", 'jax.random.fold_in(for_all, jax.lax.axis_index("dp"))', "for_all")]],
    "Q1": [
        [Step("psum over 'tp'", "return h @ down", 'return jax.lax.psum(h @ down, "tp")')],
        [
            Step("write '+tp'", f"{MLP} -> Stream:", f'{MLP} -> Float32[Array, "[batch/dp] seq model +tp"]:'),
            Step("psum over 'tp' of mlp(rms_norm(x, layer.mlp_norm), up, down)", "x + mlp(rms_norm(x, layer.mlp_norm), up, down)", 'x + jax.lax.psum(mlp(rms_norm(x, layer.mlp_norm), up, down), "tp")'),
        ],
    ],
    "Q3": [[Step("gather it first", "logsumexp(logits, -1)", 'logsumexp(all_gather(logits, "[b/dp] s [v/tp] -> [b/dp] s v"), -1)')]],
    "Q4": [[Step("gather it first", "return table[ids]", 'return all_gather(table, "[v/tp] m -> v m")[ids]')]],
    "Q5": [[Step("pmean over 'dp'", "return jnp.mean(total - chosen)", 'return jax.lax.pmean(jnp.mean(total - chosen), "dp")')]],
    "Q7": [
        [Step("write the actual sharding", '"[vocab/dp] [model/tp]"', '"[vocab/tp] [model/dp]"')],
        [Step("write the actual sharding", '"[v/tp] [m/dp] -> [v/tp] m ~dp"', '"[v/dp] [m/tp] -> [v/dp] m ~tp"')],
    ],
    "Q8": [[Step("write [model/dp]", '"s [m/tp] -> s m ~tp"', '"s [m/dp] -> s m ~dp"')]],
    "Q10": [[Step("drop the psum", 'ts.psum(gradients, "dp")', "gradients")]],
}  # fmt: skip
# Their cure is no edit: they compute otherwise what the shards hold, or gather a dim of their own for each leaf; of E5,
# where each shard sums what it kept after it heard of the others, none is seen to be right.
UNCURED = {"E5", "N4", "P6", "Q12", "Q13"}
# The ways that end in another refusal: T13 and T14 write another pattern than what the operation takes.
REFUSED = {("T13", 0), ("T14", 0), ("T14", 1), ("Q7", 1)}
BY_ID = {mutant.id: mutant for mutant in MUTANTS}


def refusal(mutant: Mutant, steps: list[Step], check_vma: bool) -> str | None:
    """The message by which a mutant is refused or suspected after some edits; None if it is taken."""
    edits = [(mutant.old, mutant.new), *[(step.old, step.new) for step in steps]]
    function, mesh = function_of(mutant.program, *edits, check_vma=check_vma), mesh_of(mutant.program.meshes[-1])
    try:
        with jax.set_mesh(mesh):
            jax.eval_shape(lambda *args: function(*args), *inputs(function, mesh=mesh, **mutant.program.given))
    except (TypedShmapError, SuspectWarning) as error:
        return str(error)
    except Exception as error:
        return f"JAX: {error}"
    return None


@cache
def right(program: Program) -> Any:
    return called(program, function_of(program), program.meshes[-1])[0]


def cure_of(message: str | None) -> str:
    """The last line but those of what else is wrong: what a message says to do."""
    return next((line for line in (message or "").splitlines() if line.startswith("Hint: ")), "")


CASES = [
    pytest.param(name, at, check_vma, id=f"{name}-{at}-{check_vma}")
    for name, ways in CURES.items()
    for at in range(len(ways))
    for check_vma in BY_ID[name].check_vma
]


def one_of_each_program(cases: list[Any]) -> list[Any]:
    """The cases, with the first of a program in the default run, and those whose programs are small."""
    seen, chosen = set[str](), list[Any]()
    for case in cases:
        mutant = BY_ID[case.values[0]]
        is_quick = mutant.id[0] in "TF" or (mutant.id[0] != "Q" and mutant.program.name not in seen)
        chosen.append(case if is_quick else slow(case))
        seen.add(mutant.program.name)
    return chosen


@pytest.mark.sample(4)
@pytest.mark.parametrize(("name", "at", "check_vma"), one_of_each_program(CASES))
def test_a_mutant_whose_messages_are_followed_is_right_or_refused(name: str, at: int, check_vma: bool) -> None:
    mutant, way = BY_ID[name], CURES[name][at]
    for done, step in enumerate(way):
        assert step.says in cure_of(refusal(mutant, way[:done], check_vma))
    if (name, at) in REFUSED:
        assert refusal(mutant, way, check_vma) is not None
        return
    assert refusal(mutant, way, check_vma) is None
    edits = [(mutant.old, mutant.new), *[(step.old, step.new) for step in way]]
    program = mutant.program
    if source_of(program, *edits, check_vma=check_vma) != source_of(program, check_vma=check_vma):
        got, _ = called(program, function_of(program, *edits, check_vma=check_vma), program.meshes[-1])
        close(jax.tree.leaves(got), jax.tree.leaves(right(program)))


# Above it is seen that the messages of the others name a cure.
REST = [pytest.param(mutant, id=mutant.id) for mutant in MUTANTS if mutant.id not in CURES]


@pytest.mark.sample(5)
@pytest.mark.parametrize("mutant", [slow(case) if case.id.startswith("Q") else case for case in REST])
def test_every_message_that_names_a_cure_is_followed(mutant: Mutant) -> None:
    for check_vma in mutant.check_vma:
        message = refusal(mutant, [], check_vma)
        if message is not None and "# typedshmap: ignore[" in message:
            expect_cured(mutant, message, check_vma)
        else:
            assert bool(cure_of(message)) == (mutant.id in UNCURED)


def expect_cured(mutant: Mutant, message: str, check_vma: bool) -> None:
    """Expect a program that follows what a suspect's message says, to the letter, to be right, or to be refused."""
    program, wrong = mutant.program, (mutant.old, mutant.new)
    source = source_of(program, wrong)
    for edits in parse_cures(message):
        if any(file not in ("", program.path.name) for _, file, _ in edits):
            continue
        cured = source
        try:
            for edit, _, line in edits:
                cured = apply_cure(cured, line, edit)
        except NotFollowedError:
            continue
        function = function_of(program, wrong, (source, imported(cured, source)), check_vma=check_vma)
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("error", SuspectWarning)
                got, _ = called(program, function, program.meshes[-1])
        except Exception:  # ours, or JAX's
            continue
        close(jax.tree.leaves(got), jax.tree.leaves(right(program)))


def imported(cured: str, source: str) -> str:
    """A source with `jax.lax` where it says only `lax` and did not before."""
    lines = zip(cured.splitlines(keepends=True), source.splitlines(keepends=True), strict=True)
    return "".join(line if line == was else re.sub(r"(?<![\w.])lax\.", "jax.lax.", line) for line, was in lines)
