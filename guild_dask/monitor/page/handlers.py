"""The HTTP handlers of the page of runs: the page, its scripts and style, rows, scalars, outputs, searches. All GET."""

import asyncio
import os
import pathlib
from typing import Any

from tornado.web import HTTPError, RequestHandler

from guild_dask.home import layout
from guild_dask.host import files
from guild_dask.monitor.page.rows import Rows, past_attempts
from guild_dask.monitor.page.scalar_cells import ScalarCells
from guild_dask.monitor.page.search_cells import SearchCells

_STATIC = pathlib.Path(__file__).with_name("static")
_SCRIPTS = ("guild.js", "output.js", "overview.js", "searches.js", "table.js", "timeline.js")
_KINDS = {
    "guild.css": "text/css",
    **dict.fromkeys(_SCRIPTS, "text/javascript"),
}

# The most bytes of output in one response.
_MOST_OUTPUT = 200_000

# The browser runs only the page's own script, whatever flags, tags and outputs of runs contain.
_POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; base-uri 'none'; form-action 'none'; "
    "frame-ancestors 'self'"
)

Route = tuple[str, type[RequestHandler], dict[str, Any]]


class _Handler(RequestHandler):
    """The headers and errors of all responses."""

    def set_default_headers(self) -> None:
        self.set_header("Content-Security-Policy", _POLICY)
        self.set_header("X-Content-Type-Options", "nosniff")
        self.set_header("Referrer-Policy", "no-referrer")
        self.set_header("Cache-Control", "no-store")
        self.clear_header("Server")

    def write_error(self, status_code: int, **_: Any) -> None:
        self.set_header("Content-Type", "text/plain; charset=utf-8")
        self.finish(f"{status_code} {self._reason}\n")

    def number(self, name: str, default: int) -> int:
        try:
            return int(self.get_query_argument(name, str(default)))
        except ValueError:
            raise HTTPError(400) from None


class _Page(_Handler):
    def get(self) -> None:
        self.set_header("Content-Type", "text/html; charset=utf-8")
        self.finish(files.content(_STATIC / "guild.html"))


class _File(_Handler):
    def get(self, name: str) -> None:
        if name not in _KINDS:
            raise HTTPError(404)
        self.set_header("Content-Type", f"{_KINDS[name]}; charset=utf-8")
        self.finish(files.content(_STATIC / name))


class _Data(_Handler):
    def initialize(self, rows: Rows) -> None:
        self._rows = rows

    async def get(self) -> None:
        # This reads run directories, and must not block Dask's event loop.
        loop = asyncio.get_running_loop()
        self.finish(await loop.run_in_executor(None, self._rows.data, self.number("since", 0)))


class _Output(_Handler):
    def initialize(self, rows: Rows) -> None:
        self._rows = rows

    async def get(self) -> None:
        run_dir = self._rows.run_dir(self.get_query_argument("run", ""))
        if run_dir is None:
            raise HTTPError(404)
        attempt, start = self.number("attempt", 0), self.number("from", -1)
        path = layout.attempt_output(run_dir, attempt) if attempt else layout.output(run_dir)
        loop = asyncio.get_running_loop()
        piece = await loop.run_in_executor(None, _piece, path, start)
        if start < 0:
            piece["attempts"] = await loop.run_in_executor(None, past_attempts, run_dir)
        self.finish(piece)


class _Scalars(_Handler):
    def initialize(self, rows: Rows, cells: ScalarCells) -> None:
        self._rows = rows
        self._cells = cells

    async def get(self) -> None:
        asked = self.get_query_argument("runs", "").split(",")
        found = [(run, run_dir) for run in asked if (run_dir := self._rows.run_dir(run))]
        curve = self.get_query_argument("curve", "")
        loop = asyncio.get_running_loop()
        self.finish(await loop.run_in_executor(None, self._cells.data, found, curve))


class _Search(_Handler):
    def initialize(self, cells: SearchCells) -> None:
        self._cells = cells

    async def get(self) -> None:
        batch, known = self.get_query_argument("batch", ""), self.get_query_argument("known", "")
        loop = asyncio.get_running_loop()
        self.finish(await loop.run_in_executor(None, self._cells.data, batch, known))


def _piece(path: str, start: int) -> dict[str, Any]:
    """Returns a piece of a file from an offset on; from -1, its end."""
    try:
        with files.opened(path) as f:
            end = os.fstat(f.fileno()).st_size
            if start < 0 or start > end:  # the run was restarted, and its output is shorter
                start = max(0, end - _MOST_OUTPUT)
            f.seek(start)
            data = f.read(_MOST_OUTPUT)
    except OSError:
        return {"text": "", "from": 0, "next": 0, "size": 0}
    # An incomplete character at the end is left for the next piece.
    whole = len(data.decode("utf-8", "ignore").encode()) if start + len(data) < end else len(data)
    data = data[: max(whole, 1)] if len(data) - whole < 4 else data
    return {"text": data.decode("utf-8", "replace"), "from": start, "next": start + len(data), "size": end}


def routes_for(rows: Rows, searches: SearchCells) -> list[Route]:
    """Returns the routes of the page."""
    return [
        (r"/guild", _Page, {}),
        (r"/guild/data", _Data, {"rows": rows}),
        (r"/guild/output", _Output, {"rows": rows}),
        (r"/guild/scalars", _Scalars, {"rows": rows, "cells": ScalarCells()}),
        (r"/guild/search", _Search, {"cells": searches}),
        (r"/guild/([a-z.]+)", _File, {}),
    ]
