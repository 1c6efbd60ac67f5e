"""Existing Dask schedulers, which are left as they were found, and clusters of any Dask cluster class."""

import contextlib
import threading
import urllib.parse
from typing import Any

import dask.config
from distributed import Client
from distributed.utils import import_term

from guild_dask.cluster.background import opened
from guild_dask.cluster.base import ClusterError, Common, OpeningStopped
from guild_dask.cluster.dask_settings import FOR_LONG_RUNS, settings_of_a_cluster
from guild_dask.cluster.remote import RemoteCluster
from guild_dask.host import files
from guild_dask.settings.cluster_spec import ClusterChoice, Kind

# Seconds to connect to the scheduler again after the connection was lost.
_RECONNECT = 5

# The most bytes of a scheduler file.
_MOST = 1_000_000


def open_existing(choice: ClusterChoice, common: Common) -> RemoteCluster:
    """Returns the cluster of an existing scheduler; raises ClusterError if it cannot be reached."""
    timeouts = common.timeouts
    client = opened(
        lambda: _client(choice, timeouts.connect), lambda client: _close(timeouts.close, client), common.is_stopping
    )
    cluster = RemoteCluster(client, common, lambda: _client_again(choice))
    cluster.wait_for_registrations(timeouts.connect)
    return cluster


def _client(choice: ClusterChoice, timeout: float) -> Client:
    """Returns a client of the scheduler; raises ClusterError if it cannot be reached."""
    settings = {name: value for name, value in FOR_LONG_RUNS.items() if ".comm." in name}
    with dask.config.set(settings):
        try:
            return Client(_address(choice), set_as_default=False, timeout=timeout)
        except (OSError, ValueError, TypeError, KeyError, ImportError, RuntimeError) as e:
            raise ClusterError(_unreachable(choice, e)) from e


def _address(choice: ClusterChoice) -> str:
    """Returns the address of a scheduler; raises ClusterError if its file is not there, or has none.

    The file is not left to Dask, which waits for a pipe, and for a minute after it found no address.
    """
    if choice.kind is not Kind.SCHEDULER_FILE:
        return choice.name
    where = f"cluster=scheduler-file:{choice.name}"
    try:
        found = files.read_json(choice.name, levels=1, most=_MOST)
    except FileNotFoundError:
        raise ClusterError(f"{where}: there is no such file") from None
    except OSError as e:
        raise ClusterError(f"{where}: {e.strerror or e}") from e
    except ValueError:
        found = None
    address = found.get("address") if isinstance(found, dict) else None
    if not isinstance(address, str):
        raise ClusterError(f"{where}: this is not a file that 'dask scheduler --scheduler-file' has written")
    return address


def _client_again(choice: ClusterChoice) -> Client | None:
    """Returns a new client of a scheduler that was lost, or None if it cannot be reached."""
    try:
        return _client(choice, _RECONNECT)
    except ClusterError:
        return None


def open_class(name: str, workers: int | None, common: Common) -> RemoteCluster:
    """Returns an opened cluster of any of Dask's classes, which takes its options from Dask's configuration."""
    try:
        cluster_class = import_term(name.replace(":", "."))
    except (ImportError, AttributeError) as e:
        raise ClusterError(f"cluster={name} cannot be imported: {e}") from e
    dask.config.set(settings_of_a_cluster())
    timeouts = common.timeouts

    def open_it() -> tuple[Any, Client]:
        cluster = cluster_class()
        if workers:
            cluster.scale(workers)
        return cluster, Client(cluster, set_as_default=False, timeout=timeouts.connect)

    def close(both: tuple[Any, Client]) -> None:
        _close(timeouts.close, *reversed(both))

    try:
        # A cluster that is opened soon after a stop request is closed: it may have workers by then.
        cluster, client = opened(open_it, close, common.is_stopping, timeouts.close)
    except OpeningStopped:
        raise
    except Exception as e:  # the class may raise anything
        raise ClusterError(f"cluster={name} cannot be opened: {e or type(e).__name__}") from e
    return own_cluster(cluster, client, common)


def _close(timeout: float, *opened: Any) -> None:
    """Closes clients and clusters, and waits for that no longer than the timeout."""

    def close_all() -> None:
        for each in opened:
            with contextlib.suppress(Exception):  # the class may raise anything
                each.close()

    closing = threading.Thread(target=close_all, name="closing", daemon=True)
    closing.start()
    closing.join(timeout)


def own_cluster(cluster: Any, client: Client, common: Common) -> RemoteCluster:
    """Returns a cluster that we opened with a class of another package, and close with its workers."""
    return RemoteCluster(client, common, close_after=lambda: _close(common.timeouts.close, cluster))


def _unreachable(choice: ClusterChoice, error: Exception) -> str:
    where = f"scheduler-file:{choice.name}" if choice.kind is Kind.SCHEDULER_FILE else choice.name
    hint = "check that a Dask scheduler runs there and that this machine can reach it"
    if choice.name.startswith("tls://"):
        hint += ", and that distributed.comm.tls in Dask's configuration has its certificates"
    first = (str(error) or type(error).__name__).splitlines()[0]
    return f"cannot reach the Dask scheduler of cluster={where} ({first}); {hint}"


def is_open_to_others(address: str) -> bool:
    """Returns whether a scheduler accepts connections from anyone who can reach it, such as other users of its host."""
    return urllib.parse.urlsplit(address).scheme in ("tcp", "ucx", "ucxx", "ws")
