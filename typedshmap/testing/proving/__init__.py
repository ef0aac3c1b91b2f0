"""Prove that the global results of a typed function do not depend on the mesh, from its traced programs."""

from .proof import Proof, prove

__all__ = ["Proof", "prove"]
