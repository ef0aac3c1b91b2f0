"""``assert_mesh_invariant``: a correct program gives the same global result on every mesh."""

from .verb import Verified, assert_mesh_invariant

__all__ = ["Verified", "assert_mesh_invariant"]
