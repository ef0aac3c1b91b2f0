"""The notebook of the tour, run from its start, so that what is kept of it is what it prints.

python bench/notebook.py            runs docs/notebooks/tour.ipynb, and tells which outputs would change
python bench/notebook.py --write    writes it with its new outputs

It needs the extra `notebooks`.
"""

import json
import sys
from pathlib import Path
from typing import Any

import nbformat
from nbclient import NotebookClient

NOTEBOOK = Path(__file__).resolve().parent.parent / "docs" / "notebooks" / "tour.ipynb"


def executed(path: Path = NOTEBOOK) -> Any:
    """A notebook with the outputs of a run in a fresh kernel; a cell that raises must be tagged `raises-exception`."""
    notebook = nbformat.read(path, as_version=4)
    NotebookClient(
        notebook, timeout=300, kernel_name="python3", resources={"metadata": {"path": str(path.parent)}}
    ).execute()
    for cell in notebook.cells:
        cell.get("metadata", {}).pop("execution", None)
    notebook.metadata = {"kernelspec": {"name": "python3", "display_name": "Python 3", "language": "python"}}
    return notebook


def main() -> int:
    before, after = nbformat.read(NOTEBOOK, as_version=4), executed()
    changed = [i for i, (old, new) in enumerate(zip(before.cells, after.cells, strict=True)) if old != new]
    for i in changed:
        print(f"cell {i}: {after.cells[i].source.splitlines()[0]}")
    if "--write" in sys.argv[1:]:
        NOTEBOOK.write_text(json.dumps(after, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
        print(NOTEBOOK)
    return 0


if __name__ == "__main__":
    sys.exit(main())
