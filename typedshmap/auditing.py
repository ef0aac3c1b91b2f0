"""The old path of `typedshmap.tools.audit`."""

from warnings import warn

from .tools.audit import *  # noqa: F403

warn("typedshmap.auditing is typedshmap.tools.audit now", DeprecationWarning, stacklevel=2)
