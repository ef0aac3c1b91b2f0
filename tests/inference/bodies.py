"""What is known of the values of a body, written in few letters.

``dp _ tp,dp ? | dp tp +pp``: dim 0 is split over dp, dim 1 is whole, dim 2 is split over tp and dp in
this order, of dim 3 nothing is known; the shards may differ over dp and tp, and over pp they are unreduced.
``8/dp 6`` is an argument: a global array of 8 by 6, of which dim 0 is split over dp.
"""

from collections.abc import Callable, Sequence
from math import prod
from typing import Any

import jax
import numpy as np
from jax.sharding import AbstractMesh, AxisType
from jax.sharding import PartitionSpec as P

from typedshmap.inference.claims import judge_claim
from typedshmap.inference.control_flow import fact_of_spec
from typedshmap.inference.facts import FactInterpreter
from typedshmap.inference.interpreted_region import RULES
from typedshmap.inference.interpreter import CLAIM
from typedshmap.inference.lattice import DimFact, ShardingFact

MESH = AbstractMesh((4, 2), ("dp", "tp"), (AxisType.Auto,) * 2)
SIZES = {"dp": 4, "tp": 2}


def claim(reader: FactInterpreter, eqn: Any, facts: list[ShardingFact]) -> list[ShardingFact]:
    """The rule of claims, of a program that was traced once."""
    return judge_claim(reader, eqn, eqn.params["claim"], facts)


def argument(text: str) -> tuple[P, tuple[int, ...]]:
    """The spec and the global shape of an argument."""
    dims = [(token.partition("/")) for token in text.split()]
    spec = P(*(tuple(axes.split(",")) if axes else None for _, _, axes in dims))
    return spec, tuple(int(size) for size, _, _ in dims)


def numbers(text: str, dtype: Any = np.float32) -> np.ndarray:
    """An argument's numbers, which are all different."""
    _, shape = argument(text)
    return np.arange(prod(shape), dtype=dtype).reshape(shape)


def dim_text(dim: DimFact) -> str:
    return "?" if dim.axes is None else ",".join(dim.axes) or "_"


def text(fact: ShardingFact) -> str:
    """What is known, over dp and tp."""
    marks = [axis for axis in SIZES if axis in fact.varying] + [f"+{axis}" for axis in SIZES if axis in fact.unreduced]
    return " ".join([*map(dim_text, fact.dims), "|", *marks])


def known(
    body: Callable[..., Any],
    *arguments: str,
    check_vma: bool,
    dtypes: Sequence[Any] = (),
    facts: Sequence[ShardingFact] | None = None,
) -> str:
    """What is known of the results of a body.

    Args:
      facts: what is known of the arguments, where it is not what their specs say.
    """
    specs, shapes = zip(*map(argument, arguments), strict=True)
    found: list[ShardingFact] = []

    def traced(*shards: Any) -> tuple[()]:
        jaxpr = jax.make_jaxpr(body)(*shards).jaxpr
        entered = [fact_of_spec(spec, len(shape), frozenset(SIZES)) for spec, shape in zip(specs, shapes, strict=True)]

        interpreter = FactInterpreter(SIZES, check_vma, {**RULES, CLAIM: claim})
        found.extend(interpreter.interpret(jaxpr, entered if facts is None else facts))
        return ()

    kinds = [*dtypes, *[np.float32] * (len(shapes) - len(dtypes))]
    structs = [jax.ShapeDtypeStruct(shape, kind) for shape, kind in zip(shapes, kinds, strict=True)]
    mapped = jax.shard_map(traced, mesh=MESH, in_specs=tuple(specs), out_specs=(), check_vma=check_vma)
    jax.eval_shape(mapped, *structs)
    return "; ".join(map(text, found))
