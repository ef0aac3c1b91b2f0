"""What is done with the programs of a table: each is typed, in the modes that it has, and refused as it says."""

from collections.abc import Mapping
from typing import Any

import jax
import pytest
from jax.sharding import Mesh

from typedshmap import TypedShmapError, typed_shard_map


def in_modes(table: Mapping[str, Any]) -> Any:
    """Parametrize a test by the programs of a table, each with every value of ``check_vma`` that it has."""
    rows = [(name, check_vma) for name, program in table.items() for check_vma in program.modes]
    return pytest.mark.parametrize(("name", "check_vma"), rows)


def typed_form(program: Any, mesh: Mesh, check_vma: bool) -> Any:
    hints = {"in_types": program.hints, "out_types": program.result}
    return typed_shard_map(lambda *shards: program.body(*shards), mesh=mesh, check_vma=check_vma, **hints)


def accept(program: Any, mesh: Mesh, check_vma: bool) -> None:
    jax.eval_shape(typed_form(program, mesh, check_vma), *program.args)


def refuse(error: type[TypedShmapError], program: Any, mesh: Mesh, check_vma: bool) -> None:
    """Expect the error, whose first line says what the program says of it."""
    with pytest.raises(error) as caught:
        accept(program, mesh, check_vma)
    assert program.said is not None
    assert program.said in str(caught.value).splitlines()[0]
