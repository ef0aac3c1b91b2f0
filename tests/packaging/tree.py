"""The tree that the tests stand in, which may be without the package: then what is installed is tested."""

from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PACKAGE = ROOT / "typedshmap"

needs_source = pytest.mark.skipif(
    not PACKAGE.is_dir(), reason="the tree is without typedshmap/: the installed package is tested"
)
