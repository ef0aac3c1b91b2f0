"""The dtypes of hints, as in ``Float8e4m3fn[Array, "[batch/dp] d"]``; the common ones are also in `typedshmap`."""

from typing import TYPE_CHECKING

# fmt: off
__all__ = [
    "BFloat16", "Bool", "Complex", "Complex64", "Complex128", "Float", "Float4e2m1fn", "Float8e3m4",
    "Float8e4m3", "Float8e4m3b11fnuz", "Float8e4m3fn", "Float8e4m3fnuz", "Float8e5m2", "Float8e5m2fnuz",
    "Float8e8m0fnu", "Float16", "Float32", "Float64", "Inexact", "Int", "Int2", "Int4", "Int8", "Int16",
    "Int32", "Int64", "Integer", "Key", "Num", "Real", "Shaped", "UInt", "UInt2", "UInt4", "UInt8", "UInt16",
    "UInt32", "UInt64",
]
# fmt: on

if TYPE_CHECKING:  # to static checkers a hint is the type of array that it names
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
else:
    from .hints.types import DTYPES

    globals().update(DTYPES)
    del DTYPES
