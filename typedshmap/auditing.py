"""The old path of `typedshmap.tools.audit`."""

from warnings import warn

from .tools.audit import *  # noqa: F403

warn("typedshmap.auditing is deprecated; use typedshmap.tools.audit", DeprecationWarning, stacklevel=2)
