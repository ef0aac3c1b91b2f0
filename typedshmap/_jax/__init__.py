"""The one door to JAX's versions: meshes, arrays, casts, jaxprs, source lines, compiled programs, traces and pytrees.

Everything above asks here, as in ``_jax.tree.leaves(x)``; nothing above looks at a JAX version, or at an attribute that
only some versions have. By public names only; `versions` says which JAX.
"""

from . import versions  # isort: split

with versions.noting_untried():
    from . import (
        array,
        casts,
        edits,
        jaxpr,
        jaxpr_key,
        mesh,
        placing,
        primitives,
        programs,
        regions,
        source,
        staging,
        trace,
        tree,
    )

__all__ = [
    "array",
    "casts",
    "edits",
    "jaxpr",
    "jaxpr_key",
    "mesh",
    "placing",
    "primitives",
    "programs",
    "regions",
    "source",
    "staging",
    "trace",
    "tree",
    "versions",
]
