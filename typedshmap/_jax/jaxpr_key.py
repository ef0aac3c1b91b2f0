"""The content of a jaxpr, as a key that compares by value.

Invariant: jaxprs with equal keys, made without notes, are lowered and compiled to the same program, except for the
values of their constants. A jaxpr with a user's function, or with constants in an inner jaxpr, has no key. A key
never refers to a jaxpr, which would keep rules of `jax.custom_jvp` alive."""

from __future__ import annotations

import struct
import sys
from collections.abc import Mapping
from dataclasses import fields, is_dataclass
from enum import Enum
from typing import Any

import jax.core
import numpy as np
from jax.sharding import AbstractMesh, Mesh, PartitionSpec, Sharding

from .jaxpr import CLAIM, open_jaxpr, scan_counts
from .versions import extend_core

# Functions that lowering does not call, since their jaxprs are other parameters. The last two group operands and
# results of a scan, which the key counts.
_NOT_LOWERED = frozenset(
    ["policy", "jvp_jaxpr_fun", "bwd", "fwd_jaxpr_thunk", "out_trees", "rule", "debug_info", "ft_in", "ft_out"]
)
_PLAIN = frozenset([bool, int, str, type(None)])
# Classes that compare as in JAX.
_COMPARED = (AbstractMesh, Enum, Mesh, PartitionSpec, Sharding, bytes, frozenset, jax.core.ShapedArray, np.dtype)
_LIBRARIES = frozenset(["builtins", "jax", "jaxlib", "ml_dtypes", "numpy", "typedshmap"])


class NoKey(Exception):
    """Raised for a jaxpr whose content cannot be compared."""


def jaxpr_key(jaxpr: Any, notes: Mapping[Any, Any] | None = None) -> tuple[Any, ...]:
    """A jaxpr's equations, with its variables numbered; a hot path, which avoids calls.

    Args:
      jaxpr: the jaxpr.
      notes: more data of its variables to compare. Then claims are compared too, but not the data that only lowering
        needs.

    Raises:
      NoKey: for a jaxpr that cannot be compared.
    """
    key: list[Any] = [len(jaxpr.constvars), len(jaxpr.invars)]
    core, numbers, count, is_lowered = extend_core(), dict[Any, int](), 0, notes is None
    literal, jaxprs, notes = core.Literal, (core.Jaxpr, core.ClosedJaxpr), notes or {}
    for var in (*jaxpr.constvars, *jaxpr.invars):
        numbers[var] = count = count + 1
        key += (var.aval, notes[var]) if var in notes else (var.aval,)
    for eqn in jaxpr.eqns:
        name, params = eqn.primitive.name, eqn.params
        key += (eqn.primitive, eqn.ctx) if is_lowered else (eqn.primitive,)
        for atom in eqn.invars:
            if atom.__class__ is not literal:
                key += (numbers[atom],)
            else:
                value = atom.val
                key += (atom.aval, value if value.__class__ in _PLAIN else np.asarray(value).tobytes())
        if name == CLAIM:
            claim = params["claim"]
            key += () if is_lowered else (claim and claim.meaning, params["claimed_dims"])
            params = {}
        elif name == "scan":
            key += scan_counts(params)
        for param in params:
            if param in _NOT_LOWERED:
                continue
            value = params[param]
            kind, parts = value.__class__, value if value.__class__ is tuple else (value,)
            if kind in _PLAIN:
                key += (param, kind, value)
            elif is_lowered or (parts and parts[0].__class__ in jaxprs):
                key += (param, _value_key(value, None if is_lowered else notes))
            else:
                key += (param, value)
        for var in eqn.outvars:
            numbers[var] = count = count + 1
            if is_lowered:
                key += (var.aval,)
            elif var in notes:
                key += (count, notes[var])
    for atom in jaxpr.outvars:
        key += (numbers[atom],) if atom.__class__ is not literal else (atom.aval, np.asarray(atom.val).tobytes())
    return tuple(key)


def _value_key(value: Any, notes: Any) -> Any:
    """The key of a parameter: a number by its bits, a container by its items."""
    kind = type(value)
    if kind is tuple and _PLAIN.issuperset(map(type, value)):
        return value, *map(type, value)
    if hasattr(value, "eqns"):
        if getattr(value, "consts", ()):
            raise NoKey
        return jaxpr_key(open_jaxpr(value), notes)
    if kind.__module__.partition(".")[0] not in _LIBRARIES:
        raise NoKey
    if kind in _PLAIN:
        return kind, value
    if kind is float or kind is complex:
        return kind, struct.pack("dd", value.real, value.imag)
    if isinstance(value, (np.ndarray, np.generic)):
        return kind, value.dtype, value.shape, value.tobytes()
    if isinstance(value, _COMPARED) or _is_in_library(value):
        return value
    if isinstance(value, (dict, tuple, list)):
        items = value.items() if isinstance(value, dict) else value
        return kind, *(_value_key(item, notes) for item in items)
    if is_dataclass(value):
        return kind, *(_value_key(getattr(value, field.name), notes) for field in fields(value))
    if getattr(value, "__dict__", None) == {}:  # such as the sentinel of an unspecified sharding
        return kind
    raise NoKey


def _is_in_library(function: Any) -> bool:
    """Whether this is a function or a class of a library's module, which stays alive."""
    module, name = str(getattr(function, "__module__", "")), str(getattr(function, "__qualname__", ""))
    return module.partition(".")[0] in _LIBRARIES and getattr(sys.modules.get(module), name, None) is function
