"""A folder over HTTP on this machine, and what a page in a browser posts back."""

from __future__ import annotations

import json
import subprocess
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

from browser import command

# No name but this machine's is found, so that a page that needs another is seen not to work.
ALONE = "--host-resolver-rules=MAP * ~NOTFOUND, EXCLUDE 127.0.0.1"


class BrowserReport:
    """What was posted, and what was asked for and is not there."""

    def __init__(self) -> None:
        self.is_done = threading.Event()
        self.what: Any = None
        self.missing: list[str] = []


class _Handler(SimpleHTTPRequestHandler):
    def __init__(self, report: BrowserReport, *args: Any, **kwargs: Any) -> None:
        self.report = report
        super().__init__(*args, **kwargs)

    def do_POST(self) -> None:
        self.report.what = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        self.send_response(204)
        self.end_headers()
        self.report.is_done.set()

    def send_error(self, code: int, message: str | None = None, explain: str | None = None) -> None:
        self.report.missing.append(f"{self.path}: {code}")
        super().send_error(code, message, explain)

    def log_message(self, format: str, *args: Any) -> None:
        pass


@contextmanager
def served(folder: Path) -> Iterator[tuple[str, BrowserReport]]:
    """The address of a folder, while it is served."""
    report = BrowserReport()
    with ThreadingHTTPServer(("127.0.0.1", 0), partial(_Handler, report, directory=str(folder))) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_address[1]}", report
        server.shutdown()


def report_of(page: str, folder: Path, profile: Path, seconds: float = 120) -> BrowserReport:
    """Open a page of a folder in a browser, and wait until it has posted what it found."""
    with served(folder) as (address, report):
        reader = subprocess.Popen(
            command(f"{address}/{page}", profile, ALONE, "--remote-debugging-port=0"), stderr=subprocess.DEVNULL
        )
        try:
            assert report.is_done.wait(seconds), f"{page} reports nothing after {seconds} s"
        finally:
            reader.terminate()
            reader.wait(20)
    return report
