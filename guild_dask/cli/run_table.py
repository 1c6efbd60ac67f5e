"""Tables of runs that fit the terminal: which columns are left out, moved below their rows, split, or cut."""

from collections.abc import Mapping, Sequence

import click

from guild_dask.cli import common
from guild_dask.monitor import formatting
from guild_dask.monitor.flag_columns import text_for

# The columns that are cut to fit, the first one first.
_CUT = ("WHY", "HOW", "LABEL", "FLAGS", "WORKER", "OPERATION", "REQUESTS")

_FLAGS = "FLAGS"
_OPERATION = "OPERATION"

Columns = dict[str, Sequence[str]]


def table_of(
    columns: Mapping[str, Sequence[str]],
    flags: Sequence[Mapping[str, str]] = (),
    last: str = "",
    beneath: Sequence[str] = (),
    spare: Sequence[str] = (),
) -> list[str]:
    """Returns a table from its columns; columns without a text are left out. `last` is the last column's colour.

    If the table is too wide, columns are left out that are `spare` or have only dashes. Then the texts of the columns
    `beneath` are put below their rows, or below the table if they are all the same. After that, `flags`, which are
    those of the column FLAGS, get a column each, or are put below their rows if these do not fit.
    """
    shown: Columns = {name: cells for name, cells in columns.items() if any(cells)}
    for name in (*spare, *(name for name, cells in shown.items() if not any(cell.strip("-") for cell in cells))):
        if not _fits(shown):
            shown.pop(name, None)
    below: Columns = {}
    for name in beneath:
        if name in shown and not _fits(shown):
            below[name] = shown.pop(name)
    if not _fits(shown):
        shown = _without_model(shown)
    if not _fits(shown) and any(flags):
        shown = _with_flag_columns(shown, flags, below)
    names = list(shown)
    lines = common.table(
        names, list(zip(*shown.values(), strict=True)), wide=_cut(shown, flags), last="" if below else last
    )
    return _with_texts_below(lines, _width(names[0], shown[names[0]]), below, last) if below else lines


def _width(name: str, cells: Sequence[str]) -> int:
    return max(formatting.width(formatting.one_line(cell)) for cell in (name, *cells))


def _fits(columns: Columns, is_cut: Sequence[str] = ()) -> bool:
    """Returns whether columns fit, if some of them are cut as far as possible."""
    widths = [_width(name, cells) for name, cells in columns.items() if name not in is_cut]
    cut = [min(common.LEAST, _width(name, cells)) for name, cells in columns.items() if name in is_cut]
    return sum(widths) + sum(cut) + 2 * (len(columns) - 1) <= common.widest_table()


def _cut(columns: Columns, flags: Sequence[Mapping[str, str]]) -> list[int]:
    """Returns the columns that are cut if they do not fit, the first one first; numbers are not."""
    names = list(columns)
    texts = [name for name in _values(flags) if name in columns and not all(map(_is_number, columns[name]))]
    return [names.index(name) for name in (*_CUT[:3], *texts, *_CUT[3:]) if name in columns]


def _is_number(text: str) -> bool:
    try:
        float(text or 0)
    except ValueError:
        return False
    return True


def _values(flags: Sequence[Mapping[str, str]]) -> dict[str, list[str]]:
    """Returns the flags that more than one run has, each with its value in every run."""
    names = dict.fromkeys(name for each in flags for name in each)
    values = {name: [each.get(name, "") for each in flags] for name in names}
    return {name: found for name, found in values.items() if len(found) - found.count("") > 1}


def _with_flag_columns(shown: Columns, flags: Sequence[Mapping[str, str]], below: Columns) -> Columns:
    """Returns columns with one for each flag that several runs have; if they do not fit, flags are put below."""
    values = _values(flags)
    rest = [text_for({name: value for name, value in each.items() if name not in values}) for each in flags]
    split: Columns = {}
    for name, cells in shown.items():
        split |= values if name == _FLAGS else {name: cells}
    if values and _fits(split, is_cut=[list(split)[index] for index in _cut(split, flags)]):
        below.update({_FLAGS: rest} if any(rest) else {})
        return split
    below[_FLAGS] = shown[_FLAGS]
    return {name: cells for name, cells in shown.items() if name != _FLAGS}


def _without_model(shown: Columns) -> Columns:
    """Returns columns with operations without their model, if all have the same: `train` for `digits:train`.

    The optimizer in `digits:train+dask:tpe` is no model.
    """
    parts = [each.partition("+") for each in shown.get(_OPERATION, ())]
    if len({name.partition(":")[0] for name, _, _ in parts if ":" in name}) != 1:
        return shown
    return {**shown, _OPERATION: [f"{name.rpartition(':')[2]}{plus}{rest}" for name, plus, rest in parts]}


def _with_texts_below(lines: Sequence[str], indent: int, below: Columns, colour: str) -> list[str]:
    """Returns a table with texts below its rows; a text that all rows share is below the table."""
    head, *rows = lines
    shared = [name for name, texts in below.items() if len(rows) > 1 and len(set(texts)) == 1]
    found = [head]
    for number, row in enumerate(rows):
        found.append(row)
        texts = {name: texts[number] for name, texts in below.items() if name not in shared and texts[number]}
        joined = "; ".join(texts.values())
        if joined and formatting.width(joined) <= common.widest_table() - indent - 2:
            texts = {"": joined}
        found += [line for name, text in texts.items() for line in _below(text, indent + 2, name, colour)]
    return found + [line for name in shared for line in common.wrapped(f"All of them: {below[name][0]}")]


def _below(text: str, indent: int, name: str, colour: str) -> list[str]:
    """Returns a text below a row: flags are whole, and others in one line, so that the table stays short."""
    cut = formatting.cut(formatting.one_line(text), int(common.widest_table()) - indent)
    lines = [" " * indent + line for line in (common.wrapped(text, indent) if name == _FLAGS else [cut])]
    return [click.style(line, fg=colour) for line in lines] if colour else lines
