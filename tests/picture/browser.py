"""Headless Chromium, for the tests that look at a page."""

import shutil
import subprocess
from pathlib import Path

import pytest

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
FLAGS = (
    "--headless --no-sandbox --disable-gpu --disable-quic --no-first-run --disable-background-networking "
    "--disable-component-update --disable-sync --hide-scrollbars"
)

needs_browser = pytest.mark.skipif(CHROMIUM is None, reason="Chromium is not installed")


def command(url: str, folder: Path, *options: str) -> list[str]:
    """What opens a page, with a profile of its own in the folder."""
    assert CHROMIUM is not None
    return [CHROMIUM, *FLAGS.split(), f"--user-data-dir={folder / 'profile'}", *options, url]


def browse(url: str, folder: Path, *options: str) -> str:
    """Open a page, and return what the browser prints."""
    return subprocess.run(
        command(url, folder, *options), capture_output=True, encoding="utf-8", timeout=120, check=True
    ).stdout


def is_drawn(shot: Path) -> bool:
    """Whether a screenshot shows anything: one of an empty page is packed into a few bytes."""
    return shot.read_bytes().startswith(b"\x89PNG") and shot.stat().st_size > 10_000
