"""Runs a scheduler in this process: opens a cluster, works, and closes what it opened.

A search is a scheduler, too: its `Guest` says which runs are started, and works beside the loop.
"""

import contextlib
import gc
import logging
import os
import queue
import signal
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Protocol

from guild_dask.host.environment import are_interrupts_ours
from guild_dask.monitor import log
from guild_dask.monitor.terminal import is_in_terminal
from guild_dask.scheduler import own_run, tracebacks
from guild_dask.scheduler.events import ControlChanged, Interrupted, OutsideEvent, RunStaged, StopRequested
from guild_dask.settings.settings import Settings, checked

if TYPE_CHECKING:
    from guild_dask.cluster.base import Cluster, Common
    from guild_dask.home.listing import Listing
    from guild_dask.monitor.publisher import Publisher
    from guild_dask.scheduler.core import Rules
    from guild_dask.scheduler.dispatch import Identity
    from guild_dask.scheduler.loop import Loop

_log = logging.getLogger("guild")

RUNS_FAILED = 1
BAD_SETTING = 2
UNEXPECTED = 3


class Guest(Protocol):
    """What works beside a scheduler's loop, in the same process."""

    batch: str  # the search whose trials are the only runs that are started

    def select(self, listing: "Listing") -> "Listing":
        """Returns the listing with the runs only that are to be started."""

    def begin(self, cluster: "Cluster", publisher: "Publisher") -> Callable[[], None]:
        """Begins to work, and returns what ends that."""


def begin_to_load_guild(kind_of_cluster: str | None) -> None:
    """Starts the process that forks starters on this machine, so that it imports Guild while this one imports Dask."""
    from guild_dask.host import environment
    from guild_dask.worker.runner import RUNNER

    # The configuration, which only Dask can read, may name another kind; then that process ends unused.
    if kind_of_cluster in (None, "", "local"):
        RUNNER.prepare(environment.user_environment(os.environ))


def run(
    settings: Settings,
    unknown: list[str],
    events: "queue.SimpleQueue[OutsideEvent]",
    is_stopping: Callable[[], bool],
    guest: Guest | None = None,
) -> int:
    """Works until the loop is over, and returns the exit code; raises BadSetting or ClusterError."""
    from guild_dask.cluster import dashboard
    from guild_dask.cluster.base import Common
    from guild_dask.home import layout, run_queue
    from guild_dask.home.heartbeat import Heartbeat
    from guild_dask.host import processes
    from guild_dask.monitor.output import OutputFollower
    from guild_dask.monitor.publisher import scheduler_state
    from guild_dask.scheduler import observers
    from guild_dask.scheduler.core import Core
    from guild_dask.scheduler.dispatch import Dispatcher
    from guild_dask.scheduler.loop import Loop

    select = (guest.select,) if guest else _select_for(settings)
    this_run = own_run.this_run()
    stream = log.OutputStream(record=layout.output(this_run.dir))
    with contextlib.ExitStack() as closing:
        closing.callback(stream.close)
        closing.callback(log.set_up(settings.loglevel, stream, layout.scheduler_log(this_run.dir)))
        _begin_log(settings, unknown)
        processes.adopt_orphans()
        identity = _identity(this_run)
        closing.callback(observers.leave_report, this_run)
        closing.callback(gc.disable)
        home = run_queue.guild_home()
        heartbeat = Heartbeat(home, this_run.id, identity.process)
        heartbeat.renew()
        closing.callback(heartbeat.leave)
        access = dashboard.access_for(settings.dashboard_address, settings.dashboard_token)
        common = Common(home, heartbeat.token, settings.lease, events.put, settings.gpus, is_stopping, access=access)
        opened = _opened_cluster(settings, common, this_run, stream, takes_searches=guest is None)
        if opened is None:
            return 0
        closing.callback(opened.close)
        closing.callback(_log.info, "Stopping Dask cluster")
        opened.prepare(identity.environ)
        follower = OutputFollower(layout.run_output(this_run.dir), stream)
        closing.callback(_log.info, "Stopping Dask scheduler")
        core = Core(_rules_for(settings, identity, opened), time.monotonic())
        closing.callback(lambda: _log.info("%s", core.summary(time.monotonic())))
        closing.callback(follower.close, is_stopping)
        queue_of_runs = run_queue.GuildHome(home, heartbeat, *select)
        _watch(home, this_run.id, events, closing)
        facts = {"trials_of": guest.batch if guest else None, "slots_at_most": opened.most_waiting}
        about = scheduler_state(this_run.id, identity.process, **facts)
        views = observers.open_views(
            settings, about, this_run.dir, opened, put=events.put, access=access, last_heartbeat=heartbeat.of_killed
        )
        closing.callback(views.close)
        closing.callback(observers.show_progress(settings, views.publisher, stream, follower, opened))
        dispatcher = Dispatcher(
            identity,
            queue_of_runs,
            opened,
            follower,
            views.publisher,
            settings.retries,
            settings.time_limit,
            settings.warm,
            settings.preload,
        )
        if guest:
            closing.callback(guest.begin(opened, views.publisher))
        code = work(Loop(core, dispatcher, heartbeat, events), layout.error_log(this_run.dir))
        return code or (RUNS_FAILED if settings.fail and core.has_failures else 0)


def _opened_cluster(
    settings: Settings,
    common: "Common",
    this_run: own_run.SchedulerRun,
    stream: log.OutputStream,
    takes_searches: bool,
) -> "Cluster | None":
    """Opens the cluster; returns None if the scheduler was stopped meanwhile, and raises ClusterError."""
    from guild_dask.cluster import opening
    from guild_dask.cluster.base import ClusterError, OpeningStopped
    from guild_dask.cluster.search_worker import WithSearchWorker
    from guild_dask.host import environment

    try:
        opened = opening.open_cluster(settings, common, this_run.dir, environment.user_environment(os.environ))
        return WithSearchWorker(opened, common.report) if takes_searches else opened
    except OpeningStopped:
        _log.info("Stopping Dask scheduler")
        _log.info("Stopping Dask cluster")
        return None
    except ClusterError:
        # The error goes to standard error, and must not overtake the log.
        stream.wait_until_recorded()
        raise


def _watch(
    home: str, scheduler_id: str, events: "queue.SimpleQueue[OutsideEvent]", closing: contextlib.ExitStack
) -> None:
    """Turns staged runs and requests of users into events, as far as the operating system reports them."""
    from guild_dask.home import control, layout
    from guild_dask.home.watch import FolderWatcher, RunsWatcher

    closing.callback(RunsWatcher(layout.runs_dir(home), lambda run_id: events.put(RunStaged(run_id))).close)
    control.forget(home, scheduler_id)  # requests to a scheduler of that id that was killed
    closing.callback(control.forget, home, scheduler_id)
    closing.callback(FolderWatcher(str(control.folder(home)), lambda: events.put(ControlChanged())).close)


def _rules_for(settings: Settings, identity: "Identity", cluster: "Cluster") -> "Rules":
    """Returns what the settings, and the kind of cluster, decide about the core."""
    from guild_dask.home import heartbeat
    from guild_dask.scheduler.core import Rules
    from guild_dask.scheduler.observers import is_log_detailed
    from guild_dask.scheduler.waiting import Demand

    do_workers_end = any(worker.lifetime for worker in cluster.prospects())
    return Rules(
        own_run=identity.run_id,
        process=identity.process,
        poll_interval=settings.poll_interval,
        heartbeat_interval=heartbeat.INTERVAL,
        run_once=settings.run_once,
        wait_for_running=settings.wait_for_running,
        is_log_detailed=is_log_detailed(settings),
        demand=Demand(settings.gpus is not None, do_workers_end, settings.time_limit),
    )


def _begin_log(settings: Settings, unknown: list[str]) -> None:
    """Logs that the scheduler starts, and which settings are ignored."""
    _log.info("Starting Dask scheduler")
    for key in unknown:
        _log.warning("Ignoring unknown key %r in section 'guild-dask' of Dask's configuration", key)
    for part in settings.resources.unreadable:
        _log.warning("%s", part)


def work(loop: "Loop", error_log: str) -> int:
    """Runs the loop until it is over, and returns the exit code."""
    gc.freeze()
    gc.enable()
    try:
        loop.run()
    except Exception as e:  # noqa: BLE001  # an error in guild-dask itself must not lose a run either
        _log_unexpected(e, error_log)
        loop.abandon()
        return UNEXPECTED
    return 0


def _select_for(settings: Settings) -> "tuple[Callable[[Listing], Listing], ...]":
    """Returns the filter of the runs that the scheduler starts, if there is one; raises BadSetting if it is invalid."""
    if settings.filter is None:
        return ()
    from guild_dask.home.run_filter import Selection

    return (checked(Selection, "filter", settings.filter).of,)


def _identity(this_run: own_run.SchedulerRun) -> "Identity":
    from guild_dask.host import environment, processes
    from guild_dask.scheduler.dispatch import Identity

    process = processes.identity(os.getpid())
    assert process is not None  # we are alive
    directory = os.environ.get("CMD_DIR") or os.getcwd()
    return Identity(this_run.id, process, environment.user_environment(os.environ), directory)


def _log_unexpected(error: Exception, path: str) -> None:
    _log.error("Stopping because of an error in guild-dask itself: %r (details are in %s)", error, path)
    tracebacks.add(path, error)


def report_signals(events: "queue.SimpleQueue[OutsideEvent]") -> "Callable[[], bool]":
    """Turns signals into events; SimpleQueue.put may be called while the loop is in the middle of a get.

    Returns a function that tells whether a signal has come, for code that runs before the loop.
    """
    asked: list[int] = []

    def report(number: int, _frame: object) -> None:
        asked.append(number)
        events.put(StopRequested())

    def report_interrupt(number: int, frame: object) -> None:
        # Asked here, and not once: a user may have put the scheduler into the background since.
        if are_interrupts_ours(os.environ) and is_in_terminal(os.environ):
            asked.append(number)
            events.put(Interrupted())
        else:
            report(number, frame)

    signal.signal(signal.SIGINT, report_interrupt)
    for number in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, report)
    return lambda: bool(asked)
