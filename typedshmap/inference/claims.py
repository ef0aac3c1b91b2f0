"""Claims: what hints, checks and patterns state of a value, as an operation of the traced program.

The operation is the identity: it keeps the value's type, and nothing of it is left when the program is
lowered. Differentiation states it of the value and leaves the tangent alone; under ``jax.vmap`` the
mapped dim is any.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cache
from typing import Any, NamedTuple

from jax.interpreters import ad, batching, mlir

from .. import _jax
from ..errors.failures import HintText
from ..hints.scope import Lying, Region, Stated, same
from ..notation.sizes import NO_SIZES, Sizes, Subject
from .facts import Names
from .reader import CLAIM


@dataclass(frozen=True, slots=True, eq=False)
class Origin:
    """One tracing of a region's body, in which claims are made: its function, and the region."""

    function: str
    region: Region


@dataclass(frozen=True, slots=True, eq=False)
class Claim:
    """What is stated of one value, and all that an error needs to tell.

    Any two are equal: JAX keeps the parameters of operations in the cache of the types of their results,
    which are the same whatever is claimed, so that it would hold the claims of all calls.

    Attributes:
      lying: how the value lies.
      stated: what was written, where, of what.
      origin: the body in which it was made.
    """

    lying: Lying
    stated: Stated
    origin: Origin

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Claim)

    def __hash__(self) -> int:
        return hash(Claim)

    @property
    def alike(self) -> Names:
        """The axes over which JAX types the value as varying, so that it has to be proven equal there."""
        return self.stated.alike

    @property
    def is_assumed(self) -> bool:
        return self.stated.is_assumed

    @property
    def region(self) -> Region:
        return self.stated.region

    @property
    def function(self) -> str:
        return self.stated.function

    @property
    def subject(self) -> Subject:
        return self.stated.subject

    @property
    def text(self) -> HintText:
        return self.stated.hint.text

    @property
    def sizes(self) -> Sizes:
        return self.stated.sizes

    @property
    def key(self) -> tuple[str, str, str, Names]:
        """What is the same when the program is traced once more."""
        return (self.function, str(self.subject), str(self.text), self.alike)


def claim_of(stated: Stated, rank: int, origin: Origin) -> Claim | None:
    """What a hint claims of a value of that rank; None for one that names axes that there are not."""
    lying = stated.region.lying(stated.hint, rank)
    return None if lying is None else Claim(lying, stated, origin)


def made_anew(claim: Claim, origin: Origin) -> Claim | None:
    """A claim as it would be made in another body; None for one that names axes that there are not.

    A function under ``jax.jit`` is traced for the first region that calls it, and what it states is
    stated again in the next one, where names may mean other axes.
    """
    stated, was, now = claim.stated, claim.origin.region, origin.region
    region = stated.region
    if frozenset(region.sizes) != frozenset(now.sizes):
        # In a region within this one, which has judged by itself what varies there.
        return replace(claim, stated=stated._replace(region=same(replace(region, watched=frozenset()))))
    own = {name for name in ("watched", "aliases", "rules") if getattr(region, name) != getattr(was, name)}
    changes = {name: getattr(now, name) for name in ("watched", "aliases", "rules") if name not in own}
    stated = stated._replace(region=same(replace(region, **changes)))
    if stated.function == claim.origin.function:
        stated = stated._replace(function=origin.function, sizes=NO_SIZES)
    return claim_of(stated, len(claim.lying.parts), origin)


class Noted(NamedTuple):
    """A claim that is kept beside the program, as the equation that it would be there."""

    params: Mapping[str, Any]
    invars: tuple[Any]
    source_info: Any


def noted(var: Any, claim: Claim) -> Noted:
    """A claim of a variable of a program, made here."""
    own = tuple(range(len(claim.lying.parts)))
    return Noted({"claim": claim, "own": own}, (var,), _jax.source_here())


def state(x: Any, claim: Claim, is_kept: bool) -> Any:
    """``x``, of which the program now says so.

    Of a value that is being differentiated it is said of the value below: JAX takes long for an
    operation without a rule of linearization, and the tangent has nothing to do with it.

    Args:
      is_kept: whether an operation stays in the program though nothing uses its result, as it does in
        the body itself. In a loop or a call, of which a transformation keeps what is used, the value
        goes through it; elsewhere it would be one value more to be saved for a gradient.
    """
    inner = _jax.innermost(x)
    below, own = (inner.value, inner.dims) if inner.is_differentiated else (x, tuple(range(len(claim.lying.parts))))
    if not _jax.is_tracer(below):
        return x
    stated = _primitive().bind(below, claim=claim, own=own)
    return x if is_kept or inner.is_differentiated else stated


@cache
def _primitive() -> Any:
    # Imported here, since jax.extend brings Pallas along, a fifth of what importing this library costs.
    from jax.extend.core import Primitive

    primitive = Primitive(CLAIM)
    primitive.def_impl(lambda x, **_: x)
    primitive.def_abstract_eval(lambda x, **_: x)
    mlir.register_lowering(primitive, lambda _, x, **__: [x])
    ad.primitive_jvps[primitive] = lambda primals, tangents, **what: (primitive.bind(*primals, **what), tangents[0])
    ad.primitive_transposes[primitive] = lambda cotangent, x, **_: [cotangent]
    batching.primitive_batchers[primitive] = _batch
    return primitive


def _batch(args: Any, at: Any, *, claim: Claim, own: tuple[int, ...]) -> Any:
    own = tuple(dim + (dim >= at[0]) for dim in own)
    return _primitive().bind(*args, claim=claim, own=own), at[0]
