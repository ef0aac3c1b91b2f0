"""The old path of `typedshmap.tools.explain`."""

from warnings import warn

from .tools.explain import *  # noqa: F403

warn("typedshmap.explaining is deprecated; use typedshmap.tools.explain", DeprecationWarning, stacklevel=2)
