"""The optimizers `dask:tpe`, `dask:random` and `dask:gp`: read their flags and their batch, and search."""

import contextlib
import fcntl
import gc
import logging
import os
import queue
import sys
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import click

from guild_dask.cluster.base import Cluster, ClusterError, WorkerCapacity
from guild_dask.home import layout, run_directory, run_queue, search_journal, trials
from guild_dask.home.errors import HomeUnavailable
from guild_dask.home.search_journal import SearchJournal
from guild_dask.monitor import log
from guild_dask.plan.objectives import BadObjective, best_of, option_for, source_for, text_for
from guild_dask.plan.retries import policy_for
from guild_dask.plan.search_ends import data_for_end
from guild_dask.plan.tags import requirements_for_tags
from guild_dask.scheduler import own_run, service
from guild_dask.scheduler.events import OutsideEvent, StopRequested
from guild_dask.scheduler.search import settings as search_settings
from guild_dask.scheduler.search.engine import Engine, EngineMissing, Observation
from guild_dask.scheduler.search.guest import EARLY_PERIOD, SearchGuest, Steps
from guild_dask.scheduler.search.prior import observations
from guild_dask.scheduler.search.search import Problem, Search, Step, described
from guild_dask.scheduler.search.settings import SearchSettings
from guild_dask.scheduler.search.space import BadSpace, space_for_flags
from guild_dask.scheduler.search.takers import Takers
from guild_dask.scheduler.search.width import Capacity, Pool, width_of_pools
from guild_dask.scheduler.service import BAD_SETTING
from guild_dask.settings import flags as declared
from guild_dask.settings.settings import BadSetting, Settings, section_of, settings_for
from guild_dask.worker.forkserver import use_libyaml

_log = logging.getLogger("guild")

SEARCH_FAILED = 1

# Variables by which Guild asks a batch for its trials without running them.
_LISTING = ("PRINT_TRIALS_CMD", "PRINT_TRIALS", "SAVE_TRIALS")


class CannotSearch(Exception):
    """The search cannot begin; the text is for the user."""


@click.command(context_settings={"help_option_names": ["-h", "--help"]})
@click.argument("kind", type=click.Choice(["tpe", "random", "gp"]))
@declared.options_for_flags("tpe")
def main(kind: str, **flags: str | None) -> None:
    """Search for the best flags. Guild runs this as `guild run OP --optimizer dask:tpe`."""
    gc.disable()
    events: queue.SimpleQueue[OutsideEvent] = queue.SimpleQueue()
    is_stopping = service.report_signals(events)
    given = {name.replace("_", "-"): text for name, text in flags.items()}
    try:
        code = _Process(kind, given, events, is_stopping).run()
    except (CannotSearch, ClusterError, BadSetting, BadSpace, BadObjective, EngineMissing, HomeUnavailable) as e:
        click.echo(f"dask:{kind}: {e}", err=True)
        code = BAD_SETTING
    except (OSError, run_directory.BrokenRun) as e:
        click.echo(f"dask:{kind}: cannot use its own run directory: {e}", err=True)
        code = BAD_SETTING
    gc.freeze()
    sys.exit(code)


class _Process:
    """One process that searches."""

    def __init__(
        self,
        kind: str,
        flags: dict[str, str | None],
        events: "queue.SimpleQueue[OutsideEvent]",
        is_stopping: Callable[[], bool],
    ) -> None:
        """Reads everything that can be wrong, before anything is staged; raises what main() reports."""
        if any(os.environ.get(name) for name in _LISTING):
            raise CannotSearch("trials depend on the results of others, so they cannot be listed in advance")
        self._kind = kind
        self._code = 0  # of the scheduler that it was itself
        self._events = events
        self._is_stopping = is_stopping
        self._run = own_run.this_run()
        self._home = run_queue.guild_home()
        self._proto = layout.prototype(self._run.dir)
        if not run_directory.is_folder(layout.guild_dir(self._proto)):
            raise CannotSearch(f"it is an optimizer: use guild run OPERATION --optimizer dask:{kind}")
        # Views, schedulers and Guild's own commands find a search, and the trials it links, there only.
        if os.path.realpath(self._run.dir) != os.path.realpath(layout.run_dir(self._home, self._run.id)):
            raise CannotSearch(f"it cannot search in {self._run.dir}: leave out --run-dir")
        # Before the source code is checked: the command that copies it again names them.
        self._objectives = trials.objectives(self._run.dir, search_journal.read(self._run.dir))
        # Guild writes this last. Without it, the source code for the trials may be missing.
        if run_directory.attribute(self._proto, "sourcecode_digest") is None:
            command = f"guild run --restart {self._run.id[:8]} --force-sourcecode {option_for(self._objectives)}"
            raise CannotSearch(
                f"guild was killed while it prepared this search; in its project, this does it again: {command}"
            )
        self._problem = self._read_problem()
        self._flags = flags
        self._settings: SearchSettings = search_settings.settings_for(flags, len(self._problem.objectives))
        self._requests = requirements_for_tags(run_directory.our_tags(self._proto)).amounts
        seed = run_directory.attribute(self._run.dir, "random_seed")
        self._seed = seed if isinstance(seed, int) else 0

    def _read_problem(self) -> Problem:
        run_dir = self._run.dir
        given = run_directory.attribute(self._proto, "flags") or {}
        if run_directory.attribute(self._proto, "trials"):
            raise CannotSearch("a batch file lists its trials, so there is nothing to search")
        limit = run_directory.attribute(run_dir, "max_trials")
        max_trials = limit if isinstance(limit, int) else 20
        if max_trials < 1:
            raise CannotSearch(f"max-trials is {max_trials}: there is nothing to do")
        return Problem(self._home, self._run.id, space_for_flags(given), self._objectives, max_trials)

    def run(self) -> int:
        """Searches, and returns the exit code."""
        with Alone(layout.search_lock(self._run.dir)):
            run_directory.forget_end(self._run.dir)  # of the start before: the search would show as ended
            settings, unknown = self._scheduler_settings()
            engine = self._engine()
            use_libyaml()  # Guild spends half of the time to stage a trial on YAML
            journal = SearchJournal(self._run.dir)
            with self._logging(settings):
                objectives = text_for(self._problem.objectives)
                _log.info("Searching with dask:%s: %s, %d trial(s)", self._kind, objectives, self._problem.max_trials)
                self._report_unknown_flags()
                search = Search(self._problem, self._settings, engine, journal, policy_for(settings.retries))
                named = source_for(self._problem.objectives)
                journal.add("started", host=os.uname().nodename, pid=os.getpid(), objectives=named)
                search.publish()  # so that views show it before workers and earlier runs are found
                search.learn_from(self._prior(journal))
                self._report_earlier("Best earlier run: %s, %s", search.better_before())
                last = self._propose_while_others_schedule(search, _checked(search))
            if not (last.is_over or self._is_stopping()):
                last = self._be_scheduler(search, journal, settings, unknown)
            with self._logging(settings):
                return self._finish(search, journal, last)

    def _report_unknown_flags(self) -> None:
        """Logs which flags are not ours. Guild checks those of a command, but not those of `optimizers:` in a file."""
        given = run_directory.known_attribute(self._run.dir, "flags") or {}
        unknown = sorted(str(name) for name in given if name not in self._flags)
        if unknown:
            _log.warning("Ignoring what dask:%s has no flag for: %s", self._kind, ", ".join(unknown))

    @contextlib.contextmanager
    def _logging(self, settings: Settings) -> Iterator[None]:
        """Logs as a scheduler does, while there is none in this process, which has a log of its own."""
        stream = log.OutputStream(record=layout.output(self._run.dir))
        remove_empty = log.set_up(settings.loglevel, stream, layout.scheduler_log(self._run.dir))
        try:
            yield
        finally:
            remove_empty()
            stream.close()

    def _scheduler_settings(self) -> tuple[Settings, list[str]]:
        from guild_dask.cluster import dask_settings

        section, unknown = section_of(dask_settings.configuration())
        kept = {name: value for name, value in section.items() if name not in ("filter", "run-once", "fail", "dry-run")}
        return settings_for(self._flags, kept), unknown

    def _engine(self) -> Engine:
        directions = [each.direction for each in self._problem.objectives]
        return Engine(self._kind, self._problem.space, directions, self._seed)

    def _prior(self, journal: SearchJournal) -> Any:
        if self._settings.prior != "operation":
            return ()
        known = self._problem
        found = observations(self._home, self._proto, known.space, known.objectives, journal.log.proposals)
        _log.info("Learning from %d completed run(s) of the same operation", len(found))
        return found

    def _report_earlier(self, text: str, runs: Iterable[Observation]) -> None:
        for each in runs:
            _log.info(text, each.run, described(each, self._problem.objectives))

    def _propose_while_others_schedule(self, search: Search, last: Step) -> Step:
        """Proposes for living schedulers, for as long as there is one that takes trials; returns the last step."""
        takers = Takers(self._home, self._run.id, self._requests, self._is_stopping)
        while not (last.is_over or self._is_stopping()) and takers.find():
            _log.info("Proposing trials for scheduler %s", ", ".join(each.id for each in takers.found))
            steps = self._steps(search, takers.width)
            last = steps.run(lambda: takers.are_gone() or self._is_stopping())
        return last

    def _steps(self, search: Search, width: Callable[[], int]) -> Steps:
        wanted = self._settings.parallel
        given = (lambda: wanted) if wanted else width
        error_log = layout.error_log(self._run.dir)
        if self._settings.stop_early == "never":
            return Steps(search, given, lambda: not self._is_stopping(), error_log)
        return Steps(search, given, lambda: not self._is_stopping(), error_log, EARLY_PERIOD)

    def _be_scheduler(self, search: Search, journal: SearchJournal, settings: Settings, unknown: list[str]) -> Step:
        from guild_dask.cluster import opening  # noqa: F401  # loads all of Dask, before the log is set up

        service.begin_to_load_guild(self._flags["cluster"])

        def width(cluster: Cluster) -> int:
            pools = [
                Pool(_capacities(each.workers()), each.most_waiting, _capacities(each.prospects()))
                for each in cluster.parts()
            ]
            return max(1, width_of_pools(pools, self._requests))

        guest = SearchGuest(
            self._run.id,
            lambda run_id: run_id in journal.log.proposals,
            lambda given: self._steps(search, given),
            width,
            lambda: self._events.put(StopRequested()),
        )
        self._code = service.run(settings, unknown, self._events, self._is_stopping, guest)
        return guest.last

    def _finish(self, search: Search, journal: SearchJournal, last: Step) -> int:
        if last.is_over and last.why:
            with contextlib.suppress(OSError):  # as on a full disk; a restart finds that it is over
                journal.add("ended", why=data_for_end(last.why))
            if last.is_failure:
                click.echo(f"dask:{self._kind}: the search stops: {last.why}", err=True)
            else:
                _log.info("The search is over: %s", last.why)
        else:
            _log.info("The search was stopped; guild run --restart %s goes on", self._run.id[:8])
        found = {each.id: each for each in search.publish_end()}
        costs = {run_id: trials.completed_costs(each, self._problem.objectives) for run_id, each in found.items()}
        for run_id in best_of({run_id: each for run_id, each in costs.items() if each}):
            _log.info("Best: trial %s, %s", run_id, described(found[run_id], self._problem.objectives))
        self._report_earlier("No trial beats earlier run %s, %s", search.better_before(list(found.values())))
        return SEARCH_FAILED if last.is_failure else self._code


def _capacities(workers: Iterable[WorkerCapacity]) -> list[Capacity]:
    return [Capacity(each.slots, each.resources) for each in workers]


def _checked(search: Search) -> Step:
    """Returns whether a search is over before its first step, so that no cluster is opened for it."""
    try:
        return search.check()
    except OSError:
        return Step()  # the first step reports it, and tries again


class Alone:
    """Ensures that no other process searches for the same batch."""

    def __init__(self, path: str) -> None:
        self._path = path

    def __enter__(self) -> None:
        self._file = open(self._path, "w", encoding="utf-8")
        try:
            fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            self._file.close()
            raise CannotSearch("this search is running already, in another process") from None
        except OSError as e:
            self._file.close()
            raise CannotSearch(f"cannot lock {self._path}: {e.strerror or e}") from None

    def __exit__(self, *_exception: object) -> None:
        self._file.close()


if __name__ == "__main__":
    main()
