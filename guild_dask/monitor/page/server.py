"""Serves the page of runs: on Dask's dashboard, or on a port of its own if pages cannot be added to the dashboard."""

import asyncio
import functools
import socket
import threading
from collections.abc import Callable, Sequence

from tornado.httpserver import HTTPServer
from tornado.ioloop import IOLoop
from tornado.web import Application, RedirectHandler

from guild_dask.host import http_connections
from guild_dask.monitor.page.handlers import Route, routes_for
from guild_dask.monitor.page.rows import Rows
from guild_dask.monitor.page.search_cells import SearchCells

PAGE = "guild"


def show(
    rows: Rows,
    searches: SearchCells,
    add_pages: Callable[[Sequence[Route], str], str | None],
    free_address: Callable[[], tuple[str, int]],
    guard: Callable[[Application], None] = lambda _: None,
) -> tuple[str, Callable[[], None]]:
    """Opens the page; returns its link and a function that closes it and the searches. Raises OSError without a port.

    `add_pages` adds routes to the dashboard and returns the link to the first page, or None if it cannot;
    `free_address` returns the host and port for a server of its own, and `guard` protects that server's application.
    """
    routes = routes_for(rows, searches)
    link = add_pages(routes, PAGE)
    if link:
        return link, searches.close
    server = PageServer(routes, *free_address(), guard)

    def close() -> None:
        server.close()
        searches.close()

    return server.link(PAGE), close


class PageServer:
    """An HTTP server in a thread of its own."""

    def __init__(
        self, routes: Sequence[Route], host: str, port: int, guard: Callable[[Application], None] = lambda _: None
    ) -> None:
        """Starts to listen; raises OSError if that fails."""
        self.port = 0
        self._host = host
        self._guard = guard
        self._loop: IOLoop | None = None
        self._problem: OSError | None = None
        ready = threading.Event()
        self._thread = threading.Thread(
            target=self._serve, args=(routes, host, port, ready), name="guild-page", daemon=True
        )
        self._thread.start()
        ready.wait()
        if self._problem:
            raise self._problem

    def _serve(self, routes: Sequence[Route], host: str, port: int, ready: threading.Event) -> None:
        loop = asyncio.new_event_loop()
        asyncio.set_event_loop(loop)
        try:
            application = Application([*routes, (r"/", RedirectHandler, {"url": "guild", "permanent": False})])
            self._guard(application)
            server = HTTPServer(application)
            http_connections.limit(server)
            self._stop = functools.partial(_stop, server)
            server.listen(port, host)
            self.port = next(iter(server._sockets.values())).getsockname()[1]
            self._loop = IOLoop.current()
        except OSError as e:
            self._problem = e
        finally:
            ready.set()
        if self._loop:
            self._loop.start()
        loop.close()

    def link(self, page: str) -> str:
        """Returns the URL of a page; it has this host's name if the server listens on all addresses."""
        host = socket.gethostname() if self._host in ("0.0.0.0", "::") else self._host
        return f"http://{host}:{self.port}/{page}"

    def close(self) -> None:
        """Stops the server."""
        if self._loop:
            self._loop.add_callback(self._stop)
        self._thread.join()


async def _stop(server: HTTPServer) -> None:
    """Stops a server and closes its connections, so that browsers notice."""
    server.stop()
    await server.close_all_connections()
    IOLoop.current().stop()
