"""What a mutant is: one place of a right program changed, and what finds it."""

from dataclasses import dataclass
from typing import Literal

from mutation import Program


@dataclass(frozen=True)
class Mutant:
    """One place changed.

    Attributes:
      id: for the table.
      kind: the number in the list of programs that JAX accepts silently, or what it is like.
      wrong: what is wrong with it.
      program: of which it is made.
      old: what stands there in the right program.
      new: what stands there instead.
      found_by: the types, when it is traced; JAX, by then, with our note; or another mesh, when it runs.
      check_vma: under which settings of the region's ``check_vma`` it is tried.
      grad: whether only its gradients are wrong.
    """

    id: str
    kind: str
    wrong: str
    program: Program
    old: str
    new: str
    found_by: Literal["types", "JAX", "mesh"]
    check_vma: tuple[bool, ...] = (True,)
    grad: bool = False
