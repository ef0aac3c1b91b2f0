"""The only access to JAX's versions: meshes, arrays, casts, jaxprs, source lines, compiled programs, traces, pytrees.

Other rooms use it as in ``_jax.tree.leaves(x)``; they do not depend on a JAX version, or on an attribute that only some
versions have. It uses public names only; `versions` lists the supported versions.
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
