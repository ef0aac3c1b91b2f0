"""typedshmap: a typed ``jax.shard_map``. The annotation is the sharding.

```python
@typed_shard_map
def mlp(x: Float[Array, "[batch/dp] model"], w: Float[Array, "model [ff/tp]"]) -> Float[Array, "[batch/dp] [ff/tp]"]:
    return jax.nn.relu(x @ w)
```
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
__all__ = [  # noqa: RUF022 (by what they are, not by the alphabet)
    "typed_shard_map", "typed_jit", "typed", "check", "assume", "size", "shard_size", "sizes",
    "explain", "choose_mesh", "show", "audit", "sanitize",
    # Hints: arrays by their dtypes, and what holds them.
    "Array", "ArrayLike", "PRNGKeyArray", "Scalar", "ScalarLike", "PyTree", "Stacked", "Like",
    "Shaped", "Bool", "Key", "Num", "Real", "Inexact", "Float", "Complex", "Integer", "Int", "UInt",
    "BFloat16", "Float16", "Float32", "Float64", "Complex64", "Complex128",
    "Float4e2m1fn", "Float8e3m4", "Float8e4m3", "Float8e4m3b11fnuz", "Float8e4m3fn", "Float8e4m3fnuz",
    "Float8e5m2", "Float8e5m2fnuz", "Float8e8m0fnu",
    "Int2", "Int4", "Int8", "Int16", "Int32", "Int64", "UInt2", "UInt4", "UInt8", "UInt16", "UInt32", "UInt64",
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
    from typing import Annotated as Complex64
    from typing import Annotated as Complex128
    from typing import Annotated as Float
    from typing import Annotated as Float4e2m1fn
    from typing import Annotated as Float8e3m4
    from typing import Annotated as Float8e4m3
    from typing import Annotated as Float8e4m3b11fnuz
    from typing import Annotated as Float8e4m3fn
    from typing import Annotated as Float8e4m3fnuz
    from typing import Annotated as Float8e5m2
    from typing import Annotated as Float8e5m2fnuz
    from typing import Annotated as Float8e8m0fnu
    from typing import Annotated as Float16
    from typing import Annotated as Float32
    from typing import Annotated as Float64
    from typing import Annotated as Inexact
    from typing import Annotated as Int
    from typing import Annotated as Int2
    from typing import Annotated as Int4
    from typing import Annotated as Int8
    from typing import Annotated as Int16
    from typing import Annotated as Int32
    from typing import Annotated as Int64
    from typing import Annotated as Integer
    from typing import Annotated as Key
    from typing import Annotated as Num
    from typing import Annotated as Real
    from typing import Annotated as Shaped
    from typing import Annotated as UInt
    from typing import Annotated as UInt2
    from typing import Annotated as UInt4
    from typing import Annotated as UInt8
    from typing import Annotated as UInt16
    from typing import Annotated as UInt32
    from typing import Annotated as UInt64
    from typing import Any

    from typing_extensions import TypeAliasType, TypeVar

    from . import testing as testing
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

    # Half of what the import costs waits until it is asked for.
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
        found = globals()[name] = getattr(import_module(f".{_ROOMS[name]}", __name__), name)
        return found

    def __dir__():
        return __all__
