"""The tables as HTML."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from html import escape

from ..errors.phrases import mesh_text
from .model import Explained, Failed
from .picture import figure
from .tables import (
    COLLECTIVE_COLUMNS,
    NO_COLLECTIVES,
    VALUE_COLUMNS,
    Row,
    collective_rows,
    compared_heading,
    comparison_columns,
    comparison_row,
    heading,
    memory_line,
    total_columns,
    total_rows,
    value_rows,
)


def explained_html(found: Explained) -> str:
    """All tables of one function on one mesh."""
    parts = [
        f"<h3>{escape(heading(found))}</h3>",
        figure(found),
        html_table(VALUE_COLUMNS, value_rows(found)),
        f"<p>{escape(memory_line(found))}</p>",
        html_table(COLLECTIVE_COLUMNS, collective_rows(found)) if found.collectives else f"<p>{NO_COLLECTIVES}</p>",
        html_table(total_columns(found), total_rows(found)) if found.collectives else "",
        notes_html(found.notes),
    ]
    return "\n".join(part for part in parts if part)


def compared_html(rows: Sequence[Explained | Failed]) -> str:
    """One row per mesh, and of each, folded, all that is told there."""
    found = [row for row in rows if isinstance(row, Explained)]
    columns = comparison_columns(found)
    errors = [f"<pre>{escape(str(row.error))}</pre>" for row in rows if isinstance(row, Failed)]
    notes = notes_html(dict.fromkeys(note for row in found for note in row.notes))
    head = f"<h3>{escape(compared_heading(found[0]))}</h3>" if found else ""
    table = html_table(columns, [comparison_row(row, columns) for row in rows])
    each = [
        f"<details><summary>{escape(mesh_text(row.mesh))}</summary>\n{explained_html(row)}\n</details>" for row in found
    ]
    return "\n".join([head, table, *errors, notes, *each])


_NUMBERS = frozenset(
    [
        "bytes per device",
        "devices",
        "in",
        "out",
        "on the wire",
        "times",
        "collectives",
        "seconds",
        "arguments + results",
    ]
)


def html_table(columns: Row, rows: Iterable[Row]) -> str:
    """A table with its headings; numbers stand to the right."""
    styles = [' style="text-align:right"' if _is_number(column) else "" for column in columns]

    def line(row: Row, tag: str) -> str:
        cells = (f"<{tag}{style}>{escape(cell)}</{tag}>" for cell, style in zip(row, styles, strict=True))
        return f"<tr>{''.join(cells)}</tr>"

    body = "\n".join(line(row, "td") for row in rows)
    return f"<table><thead>{line(columns, 'th')}</thead><tbody>\n{body}\n</tbody></table>"


def _is_number(column: str) -> bool:
    return column in _NUMBERS or column.startswith(("forward ", "gradient "))


def notes_html(notes: Iterable[str]) -> str:
    """A list of notes; nothing where there are none."""
    items = "".join(f"<li>{escape(note)}</li>" for note in notes)
    return f"<ul>{items}</ul>" if items else ""


def document(title: str, body: str) -> str:
    """A whole page."""
    style = "body{font-family:sans-serif}td,th{padding:.2em .7em;text-align:left;white-space:nowrap}"
    head = f"<meta charset='utf-8'><title>{escape(title)}</title><style>{style}</style>"
    return f"<!doctype html><html><head>{head}</head><body>\n{body}\n</body></html>\n"
