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

from .check import check as check
from .check import shard_size as shard_size
from .check import size as size
from .check import sizes as sizes
from .errors import AnnotationSyntaxError as AnnotationSyntaxError
from .errors import DtypeError as DtypeError
from .errors import MeshAxisError as MeshAxisError
from .errors import ShapeError as ShapeError
from .errors import ShardingError as ShardingError
from .errors import StructureError as StructureError
from .errors import TypedShmapError as TypedShmapError
from .errors import VaryingError as VaryingError
from .hints.axes import axis_aliases as axis_aliases
from .placement import partition_specs as partition_specs
from .placement import shard as shard
from .shard_map import typed_shard_map as typed_shard_map
from .typed import typed as typed

__version__ = "0.1.0"

if TYPE_CHECKING:
    # To static checkers a hint is the array type that stands in it.
    from typing import Annotated as BFloat16
    from typing import Annotated as Bool
    from typing import Annotated as Complex
    from typing import Annotated as Complex128
    from typing import Annotated as Complex64
    from typing import Annotated as Float
    from typing import Annotated as Float16
    from typing import Annotated as Float32
    from typing import Annotated as Float4e2m1fn
    from typing import Annotated as Float64
    from typing import Annotated as Float8e3m4
    from typing import Annotated as Float8e4m3
    from typing import Annotated as Float8e4m3b11fnuz
    from typing import Annotated as Float8e4m3fn
    from typing import Annotated as Float8e4m3fnuz
    from typing import Annotated as Float8e5m2
    from typing import Annotated as Float8e5m2fnuz
    from typing import Annotated as Float8e8m0fnu
    from typing import Annotated as Inexact
    from typing import Annotated as Int
    from typing import Annotated as Int16
    from typing import Annotated as Int2
    from typing import Annotated as Int32
    from typing import Annotated as Int4
    from typing import Annotated as Int64
    from typing import Annotated as Int8
    from typing import Annotated as Integer
    from typing import Annotated as Key
    from typing import Annotated as Num
    from typing import Annotated as Real
    from typing import Annotated as Shaped
    from typing import Annotated as UInt
    from typing import Annotated as UInt16
    from typing import Annotated as UInt2
    from typing import Annotated as UInt32
    from typing import Annotated as UInt4
    from typing import Annotated as UInt64
    from typing import Annotated as UInt8
    from typing import Any

    PRNGKeyArray = Array
    Scalar = Array
    ScalarLike = ArrayLike
    PyTree = Any
else:
    from .hints.classes import DTYPES, PRNGKeyArray, PyTree, Scalar, ScalarLike

    globals().update(DTYPES)
    del DTYPES
