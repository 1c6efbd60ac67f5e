"""What answers a browser: the page, its script and style, the rows, and outputs. Nothing but GET."""

import asyncio
import os
import pathlib
from typing import Any

from tornado.web import HTTPError, RequestHandler

from guild_dask.monitor.page.book import Book

_STATIC = pathlib.Path(__file__).with_name("static")
_KINDS = {"guild.js": "text/javascript", "guild.css": "text/css"}

# Bytes of output that one answer holds.
_MOST_OUTPUT = 200_000

# The page runs its own script and nothing else, whatever a run may have put into its flags, tags or output.
_POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; base-uri 'none'; form-action 'none'; "
    "frame-ancestors 'self'"
)

Route = tuple[str, type[RequestHandler], dict[str, Any]]


class _Handler(RequestHandler):
    """What all answers have in common."""

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
        self.finish((_STATIC / "guild.html").read_bytes())


class _File(_Handler):
    def get(self, name: str) -> None:
        if name not in _KINDS:
            raise HTTPError(404)
        self.set_header("Content-Type", f"{_KINDS[name]}; charset=utf-8")
        self.finish((_STATIC / name).read_bytes())


class _Data(_Handler):
    def initialize(self, book: Book) -> None:
        self._book = book

    async def get(self) -> None:
        # Directories may be read for it, which must not hold up Dask.
        loop = asyncio.get_running_loop()
        self.finish(await loop.run_in_executor(None, self._book.data, self.number("since", 0)))


class _Output(_Handler):
    def initialize(self, book: Book) -> None:
        self._book = book

    async def get(self) -> None:
        path = self._book.output_path(self.get_query_argument("run", ""))
        if path is None:
            raise HTTPError(404)
        loop = asyncio.get_running_loop()
        self.finish(await loop.run_in_executor(None, _piece, path, self.number("from", -1)))


def _piece(path: str, start: int) -> dict[str, Any]:
    """Returns a piece of a file from a place on; without a place (-1), the end of it."""
    try:
        with open(path, "rb") as f:
            end = os.fstat(f.fileno()).st_size
            if start < 0 or start > end:  # the run was started again, and its output with it
                start = max(0, end - _MOST_OUTPUT)
            f.seek(start)
            data = f.read(_MOST_OUTPUT)
    except OSError:
        return {"text": "", "from": 0, "next": 0, "size": 0}
    # Half a letter at the end is left for the next piece.
    whole = len(data.decode("utf-8", "ignore").encode()) if start + len(data) < end else len(data)
    data = data[: max(whole, 1)] if len(data) - whole < 4 else data
    return {"text": data.decode("utf-8", "replace"), "from": start, "next": start + len(data), "size": end}


def routes_for(book: Book) -> list[Route]:
    """Returns what a server needs to show the page."""
    return [
        (r"/guild", _Page, {}),
        (r"/guild/data", _Data, {"book": book}),
        (r"/guild/output", _Output, {"book": book}),
        (r"/guild/([a-z.]+)", _File, {}),
    ]
