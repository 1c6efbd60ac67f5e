"""Puts the page of runs where people find it: on the dashboard, or on a port of its own where we cannot add to that."""

import logging
from collections.abc import Callable

from guild_dask.cluster import ports
from guild_dask.cluster.kinds import Cluster, ClusterError
from guild_dask.cluster.local import LocalCluster
from guild_dask.page.book import Book
from guild_dask.page.handlers import routes_for
from guild_dask.page.server import PageServer
from guild_dask.settings import DashboardAddress

log = logging.getLogger("guild")


def show(book: Book, opened: Cluster, wanted: DashboardAddress | None) -> tuple[str | None, Callable[[], None]]:
    """Returns where the page is, None if nowhere, and what closes it."""
    if wanted is None:
        return None, lambda: None
    routes = routes_for(book)
    # Elsewhere the dashboard is in another process, or is not ours.
    link = opened.add_pages(routes, "guild") if isinstance(opened, LocalCluster) else None
    if link:
        return link, lambda: None
    try:
        address = ports.free_port(wanted)
        server = PageServer(routes, address.host, address.port)
    except (ClusterError, OSError) as e:
        log.warning("There is no page of runs: %s", e)
        return None, lambda: None
    return ports.link(address.host, server.port, "guild"), server.close
