"""Puts the page of runs on Dask's dashboard, or on a port of its own where pages cannot be added to that."""

from collections.abc import Callable, Sequence

from guild_dask.monitor.page.book import Rows
from guild_dask.monitor.page.handlers import Route, routes_for
from guild_dask.monitor.page.server import PageServer

PAGE = "guild"


def show(
    rows: Rows, add_pages: Callable[[Sequence[Route], str], str | None], free_address: Callable[[], tuple[str, int]]
) -> tuple[str, Callable[[], None]]:
    """Opens the page; returns its link and a function that closes it. Raises OSError if no port is available.

    `add_pages` adds routes to the dashboard and returns the link to the first page, or None if it cannot;
    `free_address` returns the host and port for a server of its own.
    """
    routes = routes_for(rows)
    link = add_pages(routes, PAGE)
    if link:
        return link, lambda: None
    server = PageServer(routes, *free_address())
    return server.link(PAGE), server.close
