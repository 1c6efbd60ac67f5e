"""The tables of a report, as HTML."""

import html
from collections.abc import Sequence
from typing import NamedTuple

from guild_dask.monitor.run_states import state_for


class Cell(NamedTuple):
    """A cell of a table: its text, its class in the style sheet, and the state whose colour marks it."""

    text: str
    kind: str = ""
    state: str = ""

    def html(self, column: str) -> str:
        mark = dot(self.state) if self.state else ""
        kind = f' class="{self.kind}"' if self.kind else ""
        name = "" if column in _PLAIN else f' data-name="{html.escape(column)}"'
        return f"<td{kind}{name}>{mark}{html.escape(self.text)}</td>"


# Columns whose cells need no name beside them, in a narrow window.
_PLAIN = frozenset(("run", "operation", "label", "flags", "end", "why"))

# The class of cells that are a line of their own, below the row.
LINE = "line"


def dot(end: str) -> str:
    """Returns a dot in the colour of a state."""
    return f'<i style="background:{state_for(end).colour}"></i>'


def table(
    title: str, columns: Sequence[str], rows: Sequence[Sequence[str | Cell]], count: int | None = None, note: str = ""
) -> list[str]:
    """Returns a table, with a note, and the number of rows that it leaves out; nothing without rows."""
    if not rows:
        return []
    cells = [[cell if isinstance(cell, Cell) else Cell(cell) for cell in row] for row in rows]
    # Columns without content are left out.
    lines = [place for place in range(len(columns)) if cells[0][place].kind == LINE]
    used = [place for place in range(len(columns)) if place not in lines and any(row[place].text for row in cells)]
    kinds = [' class="number"' if cells[0][place].kind == "number" else "" for place in used]
    head = "".join(f"<th{kind}>{html.escape(columns[place])}</th>" for kind, place in zip(kinds, used, strict=True))
    body = []
    for row in cells:
        body.append("<tr>" + "".join(row[place].html(columns[place]) for place in used) + "</tr>")
        texts = [html.escape(row[place].text) for place in lines if row[place].text]
        body += [f'<tr class="below"><td class="line" colspan="{len(used)}">{text}</td></tr>' for text in texts]
    more = f"<p>... and {count - len(rows)} more</p>" if count is not None and count > len(rows) else ""
    below = f'<p class="note">{html.escape(note)}</p>' if note else ""
    title_line = f"<h2>{html.escape(title)}</h2>{below}"
    return [title_line, f'<div class="table"><table><tr>{head}</tr>', *body, f"</table></div>{more}"]
