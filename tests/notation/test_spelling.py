"""Which names of dims look like misspellings of others."""

import numpy as np
import pytest
from jax.sharding import Mesh

from typedshmap import Array, Float, SuspectWarning, einsum, typed, typed_shard_map
from typedshmap.notation.spelling import misspelt_name

MISSPELT = [
    ("batch seqlen batch seqlne", "seqlne", "seqlen"),
    ("batch batch bacth", "bacth", "batch"),
    ("bacth batch batch", "bacth", "batch"),
    ("model modle", "modle", "model"),
    ("heads heads haeds", "haeds", "heads"),
    ("seqlen seqlen sqlen", "sqlen", "seqlen"),
    ("hidden hidden hiddden", "hiddden", "hidden"),
    ("vocab vocab vocaab", "vocaab", "vocab"),
    ("batch batch batchh", "batchh", "batch"),
    ("batch batch bstch", "bstch", "batch"),
    ("q_seqlen q_seqlen q_seqlne", "q_seqlne", "q_seqlen"),
    ("d_model d_model dmodel", "dmodel", "d_model"),
]
APART = (
    "q_len k_len", "seq_q seq_k seq_q", "heads head head", "head_dim heads_dim head_dim", "dim1 dim2 dim1",
    "batch patch batch", "height weight height", "in_features on_features in_features", "seqlen seqlenk seqlen",
    "states stages states", "layer layers layer", "query key value", "rows cols", "batch batch bath",
    "experts expert expert", "block1 block2 block1", "model model mode", "n m n k", "input output", "train trail",
    "bacth bacth batch batch", "kv_heads q_heads",
    "source sources", "length lengths length", "d_model d_ff d_model", "hidden hidden hidden2",
)  # fmt: skip


@pytest.mark.parametrize(("names", "wrong", "right"), MISSPELT)
def test_a_slip_of_a_finger_is_found(names: str, wrong: str, right: str) -> None:
    assert misspelt_name(names.split()) == (wrong, right)


@pytest.mark.parametrize("names", APART)
def test_names_that_tell_dims_apart_are_none(names: str) -> None:
    assert misspelt_name(names.split()) is None


def scores(q: Float[Array, "batch seqlen"], k: Float[Array, "batch seqlne"]) -> Float[Array, "batch"]:
    return (q * k).sum(1)


def test_a_signature_with_one_is_suspect() -> None:
    with pytest.warns(SuspectWarning) as caught:
        typed(scores)
    (warning,), line = caught, scores.__code__.co_firstlineno
    assert (warning.filename, warning.lineno) == (__file__, line)
    assert str(warning.message) == (
        "scores: dim 'seqlne' stands once, and looks like 'seqlen'\n\n"
        f"At: test_spelling.py:{line} (scores)\n"
        "Hint: write 'seqlen', or a more distinct name"
    )


def test_hints_that_are_given_are_read_too(mesh: Mesh) -> None:
    hints = {"in_types": Float[Array, "[batch/dp] model"], "out_types": Float[Array, "[batch/dp] modle"]}
    with pytest.warns(SuspectWarning, match="dim 'modle' stands once, and looks like 'model'"):
        typed_shard_map(lambda x: x, mesh=mesh, **hints)


def test_a_pattern_with_one_is_suspect() -> None:
    with pytest.warns(SuspectWarning, match="einsum: dim 'modle' stands once in .*, and looks like 'model'") as caught:
        einsum(np.ones((2, 3)), np.ones((3, 4)), "batch model, modle hidden -> batch hidden")
    assert caught[0].filename == __file__
