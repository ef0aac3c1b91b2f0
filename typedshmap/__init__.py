"""typedshmap: a typed ``jax.shard_map``. The annotation is the sharding.

```python
@typed_shard_map
def mlp(x: Float[Array, "[batch/dp] model"], w: Float[Array, "model [ff/tp]"]) -> Float[Array, "[batch/dp] [ff/tp]"]:
    return jax.nn.relu(x @ w)
```

Verbs:
  typed_shard_map  a function in a manual region; also `jax.shard_map` with its specs, by another name
  typed_jit        a function of global arrays, compiled
  typed            a helper, in a region or outside
  check, assume    compare a value with a hint; trust a hint
  size, shard_size the size of a dim of the call

Hints:
  Float[Array, "[batch/dp] d +tp"]: a dim in brackets is sharded, and a sum over tp is still due
  PyTree, Stacked, Like hold several arrays; all dtypes are in `typedshmap.dtypes`
  axis_aliases, axis_rules define names in hints

Operations, whose patterns show the sharding before and after:
  einsum, rearrange, reduce, repeat, take, softmax, logsumexp, reshard
  psum, pmean, pmax, pmin, psum_scatter, all_gather, all_to_all, ppermute

Arrays at rest:
  shard places; shardings, partition_specs and shape_structs come from hints
  from_process_local, from_callback join the data of processes

Tools:
  audit            reads every `shard_map` that is traced, typed or plain
  explain          the memory and traffic of each device; choose_mesh, show
  sanitize         compares replicas while a program runs
  testing          mesh invariance, proofs, budgets
  inspection       tools for your own checks
"""

from typing import TYPE_CHECKING

from jax import Array as Array
from jax.typing import ArrayLike as ArrayLike

from .axis_names import axis_aliases, axis_rules
from .check import assume, check, shard_size, size, sizes
from .errors import (
    AnnotationSyntaxError,
    DivergenceError,
    DtypeError,
    MeshAxisError,
    PatternError,
    ReplicaError,
    ShapeError,
    ShardingError,
    StructureError,
    SuspectWarning,
    TypedShmapError,
    VaryingError,
)
from .shard_map import typed_shard_map
from .typed import typed

__version__ = "0.2.0"

# fmt: off
__all__ = [  # noqa: RUF022 (grouped by topic, not sorted)
    "typed_shard_map", "typed_jit", "typed", "check", "assume", "size", "shard_size", "sizes",
    "explain", "choose_mesh", "show", "audit", "sanitize",
    # Hints: arrays by their dtypes, and trees.
    "Array", "ArrayLike", "PRNGKeyArray", "Scalar", "ScalarLike", "PyTree", "Stacked", "Like",
    "Shaped", "Bool", "Key", "Num", "Real", "Inexact", "Float", "Complex", "Integer", "Int", "UInt",
    "BFloat16", "Float16", "Float32", "Float64", "Int32", "Int64", "UInt32",
    # Names in hints, and arrays at rest.
    "axis_aliases", "axis_rules",
    "from_callback", "from_process_local", "partition_specs", "shape_structs", "shard", "shardings",
    # Operations.
    "all_gather", "all_to_all", "axis_index", "axis_size", "einsum", "logsumexp", "plan_reshard", "pmax", "pmean",
    "pmin", "ppermute", "psum", "psum_scatter", "rearrange", "reduce", "repeat", "reshard", "softmax", "take",
    # Errors.
    "AnnotationSyntaxError", "DivergenceError", "DtypeError", "MeshAxisError", "PatternError", "ReplicaError",
    "ShapeError", "ShardingError", "StructureError", "SuspectWarning", "TypedShmapError", "VaryingError",
]
# fmt: on

if TYPE_CHECKING:
    # To static checkers a hint is the type of array that it names, and a PyTree is anything.
    from typing import Annotated as BFloat16
    from typing import Annotated as Bool
    from typing import Annotated as Complex
    from typing import Annotated as Float
    from typing import Annotated as Float16
    from typing import Annotated as Float32
    from typing import Annotated as Float64
    from typing import Annotated as Inexact
    from typing import Annotated as Int
    from typing import Annotated as Int32
    from typing import Annotated as Int64
    from typing import Annotated as Integer
    from typing import Annotated as Key
    from typing import Annotated as Num
    from typing import Annotated as Real
    from typing import Annotated as Shaped
    from typing import Annotated as UInt
    from typing import Annotated as UInt32
    from typing import Any

    from typing_extensions import TypeAliasType, TypeVar

    from . import testing as testing
    from .dtypes import (
        Complex64 as Complex64,
    )
    from .dtypes import (
        Complex128 as Complex128,
    )
    from .dtypes import (
        Float4e2m1fn as Float4e2m1fn,
    )
    from .dtypes import (
        Float8e3m4 as Float8e3m4,
    )
    from .dtypes import (
        Float8e4m3 as Float8e4m3,
    )
    from .dtypes import (
        Float8e4m3b11fnuz as Float8e4m3b11fnuz,
    )
    from .dtypes import (
        Float8e4m3fn as Float8e4m3fn,
    )
    from .dtypes import (
        Float8e4m3fnuz as Float8e4m3fnuz,
    )
    from .dtypes import (
        Float8e5m2 as Float8e5m2,
    )
    from .dtypes import (
        Float8e5m2fnuz as Float8e5m2fnuz,
    )
    from .dtypes import (
        Float8e8m0fnu as Float8e8m0fnu,
    )
    from .dtypes import (
        Int2 as Int2,
    )
    from .dtypes import (
        Int4 as Int4,
    )
    from .dtypes import (
        Int8 as Int8,
    )
    from .dtypes import (
        Int16 as Int16,
    )
    from .dtypes import (
        UInt2 as UInt2,
    )
    from .dtypes import (
        UInt4 as UInt4,
    )
    from .dtypes import (
        UInt8 as UInt8,
    )
    from .dtypes import (
        UInt16 as UInt16,
    )
    from .dtypes import (
        UInt64 as UInt64,
    )
    from .jit import typed_jit
    from .ops import (
        all_gather,
        all_to_all,
        axis_index,
        axis_size,
        einsum,
        logsumexp,
        plan_reshard,
        pmax,
        pmean,
        pmin,
        ppermute,
        psum,
        psum_scatter,
        rearrange,
        reduce,
        repeat,
        reshard,
        softmax,
        take,
    )
    from .placement import from_callback, from_process_local, partition_specs, shape_structs, shard, shardings
    from .tools.audit import audit
    from .tools.explain import choose_mesh, explain, show
    from .tools.sanitize import sanitize

    _T = TypeVar("_T", default=Any)
    _S = TypeVar("_S", default=Any)
    PRNGKeyArray = Array
    Scalar = Array
    ScalarLike = ArrayLike
    PyTree = TypeAliasType("PyTree", Any, type_params=(_T, _S))
    Stacked = TypeAliasType("Stacked", _T, type_params=(_S, _T))
    Like = TypeAliasType("Like", _S, type_params=(_S, _T))
else:
    from importlib import import_module

    from .hints.types import DTYPES, Like, PRNGKeyArray, PyTree, Scalar, ScalarLike, Stacked

    globals().update(DTYPES)
    del DTYPES

    # Half of the import time waits until these names are used.
    _LAZY = {
        "tools.audit": "audit",
        "tools.explain": "choose_mesh explain show",
        "jit": "typed_jit",
        "ops": "all_gather all_to_all axis_index axis_size einsum logsumexp plan_reshard pmax pmean pmin ppermute "
        "psum psum_scatter rearrange reduce repeat reshard softmax take",
        "placement": "from_callback from_process_local partition_specs shape_structs shard shardings",
        "tools.sanitize": "sanitize",
    }
    _ROOMS = {name: room for room, names in _LAZY.items() for name in names.split()}

    def __getattr__(name):
        if name == "testing":
            return import_module(".testing", __name__)
        if name not in _ROOMS:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        value = globals()[name] = getattr(import_module(f".{_ROOMS[name]}", __name__), name)
        return value

    def __dir__():
        return __all__
