"""Finds a free port for the dashboard, and decides who may read it."""

import errno
import secrets
import socket
import urllib.parse

import dask.config

from guild_dask.cluster.base import ClusterError
from guild_dask.host.http_access import Access
from guild_dask.settings.settings import DashboardAddress


def free_port(wanted: DashboardAddress) -> DashboardAddress:
    """Returns the address with the next port that is free on it; raises ClusterError if it cannot be listened on."""
    ports = [*range(wanted.port, min(wanted.port + 100, 65536)), 0] if wanted.port else [0]
    for port in ports:
        try:
            if _is_free(wanted.host, port):
                return DashboardAddress(wanted.host, port)
        except (OSError, UnicodeError) as e:
            problem = e.strerror if isinstance(e, OSError) and e.strerror else "that is not an address"
            raise ClusterError(
                f"invalid value dashboard-address={wanted.host}:{wanted.port}: {problem}; "
                "use a port (8787), an address of this machine (0.0.0.0:8787), 0 for any free port, or no for none"
            ) from e
    return wanted


def access_for(wanted: DashboardAddress | None, has_token: bool) -> Access:
    """Returns who may read the pages at an address, with a new token if there is to be one."""
    host = wanted.host if wanted else ""
    # The user may have configured a link through a proxy in Dask.
    link = urllib.parse.urlsplit(str(dask.config.get("distributed.dashboard.link", "") or "")).netloc
    names = (host, socket.gethostname(), link.rpartition("@")[2].partition(":")[0])
    known = frozenset(name.lower() for name in names if name and "{" not in name)
    return Access(secrets.token_urlsafe(24) if has_token else "", known, wanted is None or wanted.is_local)


def _is_free(host: str, port: int) -> bool:
    """Returns whether the port is free; raises OSError if it cannot be listened on at all."""
    family, kind, protocol, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
    with socket.socket(family, kind, protocol) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(address)
            probe.listen(1)
        except OSError as e:
            if e.errno == errno.EADDRINUSE:
                return False
            raise
    return True
