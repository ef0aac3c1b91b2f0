"""The section of the page that `bench/caches.py` writes; apart, since what the rows import changes what calls cost."""

from pathlib import Path

CACHES = "## Caches\n"


def write_caches(path: Path, section: str) -> None:
    """Write the section on caches, by `bench/caches.py`, at the end of the page."""
    text = path.read_text(encoding="utf-8").partition(CACHES)[0].rstrip("\n")
    path.write_text(f"{text}\n\n{CACHES}{section}" if section else f"{text}\n", encoding="utf-8")
