"""Opens and closes the views of a scheduler: state, page of runs, live line, notifications, scalars, report."""

import functools
import logging
import os
import shutil
from collections.abc import Callable
from dataclasses import dataclass, replace

from guild_dask.cluster import dashboard, http_ports
from guild_dask.cluster.base import Cluster, ClusterError
from guild_dask.home import layout, run_queue
from guild_dask.host import environment
from guild_dask.host.http_access import Access
from guild_dask.monitor import journal, terminal
from guild_dask.monitor.completions import Completions
from guild_dask.monitor.log import OutputStream
from guild_dask.monitor.notify import Notifier, command_for
from guild_dask.monitor.output import OutputFollower
from guild_dask.monitor.page import server
from guild_dask.monitor.page.rows import Rows
from guild_dask.monitor.page.search_cells import SearchCells
from guild_dask.monitor.progress import Progress
from guild_dask.monitor.publisher import Publisher
from guild_dask.monitor.report import files
from guild_dask.monitor.scalars import Scalars
from guild_dask.monitor.state import State
from guild_dask.plan.capacity import SEARCH
from guild_dask.scheduler.events import OutsideEvent, PageOpened
from guild_dask.scheduler.own_run import SchedulerRun
from guild_dask.scheduler.search.evaluation import evaluation_command
from guild_dask.settings.settings import DashboardAddress, Settings

log = logging.getLogger("guild")


@dataclass(frozen=True)
class Views:
    """What has been opened."""

    publisher: Publisher
    close: Callable[[], None]


def open_views(  # noqa: PLR0913  # what the views show, and to whom
    settings: Settings,
    about: State,
    run_dir: str,
    opened: Cluster,
    *,
    put: Callable[[OutsideEvent], object],
    access: Access,
    last_heartbeat: float,
) -> Views:
    """Opens the page of runs, and the publisher for it and for other views."""
    is_detailed = is_log_detailed(settings)
    rows = Rows(layout.runs_dir(run_queue.guild_home()), lambda: put(PageOpened()))
    link, close_page = _show_page(rows, opened, settings.dashboard_address, access)
    about = replace(about, run_once=settings.run_once, filter=settings.filter)
    about = replace(about, gpus=None if settings.gpus is None else ",".join(settings.gpus))
    about = replace(about, dashboard=opened.dashboard_link(), page=link)
    publisher = Publisher(run_queue.guild_home(), run_dir, about, rows if link else None, last_heartbeat)
    scalars = Scalars(layout.scheduler_scalars(run_dir))
    publisher.listeners.append(scalars)
    completions = Completions(run_queue.guild_home(), at_once=is_detailed)
    publisher.listeners.append(completions)
    notifier = None
    if settings.notify:
        user = environment.user_environment(os.environ)
        if shutil.which(settings.notify[0], path=user.get("PATH")) is None:
            log.warning("There is no command %r, which flag 'notify' names", settings.notify[0])
        notifier = Notifier(command_for(settings.notify, user, run_dir))
        publisher.listeners.append(notifier)

    def close() -> None:
        publisher.close()
        scalars.close()
        completions.close()
        if notifier:
            notifier.close()
        close_page()

    return Views(publisher, close)


def is_log_detailed(settings: Settings) -> bool:
    """Returns whether the log has lines for starts and completions between the lines that runs print.

    The documented output of `run-once` has none; in a terminal, they are welcome.
    """
    return not settings.run_once or terminal.is_in_terminal(os.environ)


def _show_page(
    rows: Rows, opened: Cluster, wanted: DashboardAddress | None, access: Access
) -> tuple[str | None, Callable[[], None]]:
    """Returns the link to the page of runs, or None if there is none, and what closes the page."""

    def free_address(wanted: DashboardAddress) -> tuple[str, int]:
        found = dashboard.free_port(wanted)
        return found.host, found.port

    if wanted is not None:
        try:
            guard = functools.partial(http_ports.guard, access=access)
            searches = SearchCells(rows.home, evaluation_command)
            link, close = server.show(rows, searches, opened.add_pages, functools.partial(free_address, wanted), guard)
        except (ClusterError, OSError) as e:
            log.warning("There is no page of runs: %s", e)
        else:
            log.info("Page of runs: %s", access.link(link))
            return access.link(link), close
    return None, lambda: None


def show_progress(
    settings: Settings, publisher: Publisher, stream: OutputStream, follower: OutputFollower, opened: Cluster
) -> Callable[[], None]:
    """Shows the progress of runs on the terminal, if there is one and the user wants it; returns what ends that."""
    found = None if settings.progress == "no" else terminal.terminal_for(os.environ)
    # A search prints little, and is not counted: it is in no slot.
    is_one_at_a_time = sum(worker.slots for worker in opened.workers() if SEARCH not in worker.resources) == 1
    follower.is_on_terminal = found is not None
    follower.names_runs = found is not None and not is_one_at_a_time
    if found is None and settings.progress != "yes":
        return lambda: None
    return Progress(lambda: publisher.latest, stream, found).close


def leave_report(this_run: SchedulerRun) -> None:
    """Writes the report of the scheduler's runs, as the last step."""
    if not any(event["event"] == "started" for event in journal.read(layout.events(this_run.dir))):
        return
    try:
        files.write_report(this_run.dir, layout.report(this_run.dir), evaluation_command)
    except Exception as e:  # noqa: BLE001  # an error in the report must not fail a scheduler whose runs are done
        log.debug("No report: %r", e)
