"""Operations whose patterns carry the sharding: a pattern becomes a plan, and the plan is run.

A pattern is global mathematics over global sizes, and shows all communication.
"""

from .collectives import all_gather, all_to_all, axis_index, axis_size, pmax, pmean, pmin, ppermute, psum, psum_scatter
from .contraction import einsum
from .lookup import take
from .normalization import logsumexp, softmax
from .resharding import plan_reshard, reshard
from .shapes import rearrange, reduce, repeat

# fmt: off
__all__ = ["all_gather", "all_to_all", "axis_index", "axis_size", "einsum", "logsumexp", "plan_reshard", "pmax",
           "pmean", "pmin", "ppermute", "psum", "psum_scatter", "rearrange", "reduce", "repeat", "reshard", "softmax",
           "take"]
