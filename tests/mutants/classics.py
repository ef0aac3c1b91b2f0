"""The programs: the quickstart's model at a small size, and eight classics."""

from typing import Any

from mutation import Program

DP_TP = {"dp": 2, "tp": 2}


def classic(name: str, file: str, function: str, *meshes: dict[str, int], **options: Any) -> Program:
    return Program(name, f"tests/mutants/classic_{file}.py", function, meshes, **options)


STEP = classic("data-parallel step", "data_parallel", "step", {"dp": 4}, unchecked=False)
STEP_BY_HAND = classic("data-parallel step by hand", "data_parallel", "step_by_hand", {"dp": 4}, unchecked=False)
FORWARD = classic("tensor-parallel MLP", "tensor_mlp", "forward", DP_TP, grad=True)
AT_REST = classic("tensor-parallel MLP, weights at rest", "tensor_mlp", "at_rest", DP_TP, grad=True)
GRADIENTS = classic("tensor-parallel MLP, gradients", "tensor_mlp", "loss_and_gradients", DP_TP, unchecked=False)
BY_HAND = classic("tensor-parallel MLP, gradients by hand", "tensor_mlp", "by_hand", DP_TP, unchecked=False)
ATTENTION = classic("ring attention", "ring_attention", "attention", {"dp": 2, "sp": 3}, grad=True)
EXPERTS = classic("mixture of experts", "experts", "layer", {"ep": 2}, given={"tokens": 16, "experts": 4}, grad=True)
LOSS = classic("sharded cross-entropy", "cross_entropy", "cross_entropy", DP_TP, grad=True)
TOKEN_LOSSES = classic(
    "sharded cross-entropy, own gradient", "cross_entropy", "token_losses", DP_TP, grad=True, unchecked=False
)
PIPELINE = classic("pipeline", "pipeline", "pipeline", {"pp": 3}, given={"stages": 6, "model": 4}, grad=True)
HEAT = classic("halo stencil", "stencil", "heat", {"y": 3, "x": 2})
FOURIER = classic("distributed Fourier transform", "fourier", "spectrum", {"p": 2, "q": 2})
ACCUMULATED = classic(
    "accumulated gradients", "accumulation", "accumulated", {"dp": 4}, given={"micro": 3, "batch": 12}
)
SOLVED = classic("iteration until convergence", "solver", "solved", {"dp": 4}, given={"n": 8})
QUANTISED = classic("product in eight bits", "quantised", "quantised", DP_TP)
AVERAGED = classic("mean of sixteen bits", "half", "mean_size", {"dp": 4}, given={"rows": 2048, "model": 4})
LOADED = classic("shuffled rows", "loader", "loaded", DP_TP, given={"rows": 8})
RESTORED = classic("restored checkpoint", "checkpoint", "restored", DP_TP, given={"rows": 8, "model": 16})
NOISED = classic("rows with noise", "noise", "noised", {"dp": 4}, given={"batch": 8, "model": 5})

SMALL = {"vocab": 12, "model": 8, "seq": 6, "heads": 2, "head": 4, "ff": 16, "layers": 2, "batch": 4}
# The inputs are random, so that mean squares of gradients may be negative, or all but zero. One step has to show.
ONE_STEP = (("(jnp.sqrt(s) + 1e-8)", "(jnp.sqrt(jnp.abs(s)) + 1e-2)"), ("100, 4e-3", "250, 1.0"))
QUICKSTART = Program("quickstart", "examples/quickstart.py", "loss_and_gradients", (DP_TP,), SMALL, unchecked=False)
TRAINING = Program(
    "quickstart, whole step", "examples/quickstart.py", "train_step", (DP_TP,), SMALL, ONE_STEP,
    unchecked=False,
)  # fmt: skip

CLASSICS = (
    STEP, STEP_BY_HAND, FORWARD, AT_REST, GRADIENTS, BY_HAND, ATTENTION, EXPERTS, LOSS, TOKEN_LOSSES, PIPELINE, HEAT,
    FOURIER, ACCUMULATED, SOLVED, QUANTISED, AVERAGED, LOADED, RESTORED, NOISED, QUICKSTART, TRAINING,
)  # fmt: skip
