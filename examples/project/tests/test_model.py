"""What the model computes, and what it costs. `step` is marked by `mesh_invariant`, so that the plugin verifies it."""

from regression.model import loss_and_gradients

from typedshmap.testing import assert_cost, assert_mesh_invariant


def test_gradients_are_the_same_on_every_mesh():
    assert_mesh_invariant(loss_and_gradients, ["dp=8,tp=1", "dp=2,tp=4"], batch=16, features=16, hidden=64)


def test_a_step_takes_one_gather_and_what_transposes_it():
    collectives = {"all-gather/dp": 1, "all-reduce/dp": 2, "all-reduce/tp": 1, "reduce-scatter/dp": 1}
    assert_cost(loss_and_gradients, mesh="dp=64,tp=8", collectives=collectives, batch=4096, features=1024, hidden=8192)
