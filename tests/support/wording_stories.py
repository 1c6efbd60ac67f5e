"""Records and decisions as data: written by one process and read by another one with a different wording.

`python -m tests.support.wording_stories write FOLDER` writes records to a folder, and `read FOLDER` prints what follows
from them as JSON. With an additional argument `reworded`, all messages of that process have another wording. The folder
is a Guild home with a staged run. Of texts, only the number of words is compared.
"""

import dataclasses
import json
import os
import pathlib
import sys
from typing import Any

from tests.support import rewording

REWORDED = "reworded"
RUN = "worded"  # unique among tests: a process with this id would count as a process of this run


def write(home: pathlib.Path) -> None:
    """Writes what a scheduler leaves: its state, its events, an attempt that is to be retried, and an end note."""
    from guild_dask.home import attempts, claims, end_note, run_info
    from guild_dask.home.outcome import Cause, End, Excess, Result
    from guild_dask.monitor.publisher import scheduler_state
    from guild_dask.monitor.state import EndedRun, WaitingKind, WaitingRun, as_data

    reasons, troubles = _reasons(), _troubles()
    first = tuple(WaitingRun(f"run{number}", "op", 1.0, ASKS, why) for number, why in enumerate(reasons))
    results = [Result(End.TERMINATED, -15, cause, 1, Excess(60.0, 70.0)) for cause in Cause]
    results += [Result(End.FAILED, -11), Result(End.RETRIED, 3), Result(End.COULD_NOT_START, 1)]
    ended = tuple(
        EndedRun(f"end{number}", "op", r.end.value, r.exit_code, "w", "h", 2.0, 1.0, 1.0, 1, {}, {}, r.ending.cause)
        for number, r in enumerate(results)
    )
    ended = tuple(dataclasses.replace(each, excess=Excess(60.0, 70.0)) for each in ended)
    state = dataclasses.replace(
        scheduler_state("sss", _me()),
        first=first,
        waiting=len(first),
        kinds=tuple(WaitingKind(1, ASKS, why) for why in reasons),
        first_held={f"held{number}": why for number, why in enumerate(reasons)},
        troubles=troubles,
        ended=ended,
    )
    (home / "state.json").write_text(json.dumps(as_data(state)))
    for number, cause in enumerate((None, *Cause)):
        over = attempts.attempt_for(number + 1, cause, None if cause else 3, "here")
        attempts.add(str(home / "runs" / RUN), over)
        note = claims.path(home / "notes", f"note{number}")
        note.parent.mkdir(exist_ok=True)
        end_note.write(note, cause, Excess(60.0, 70.0))
        if cause:
            run_dir = home / "ended" / cause.name / ".guild" / "attrs"
            run_dir.mkdir(parents=True)
            facts = run_info.facts_for_cause(run_info.ENDED, cause, Excess(60.0, 70.0))
            (run_dir / "dask").write_text(run_info.text_for(facts))
    _write_searches(home)


def _write_searches(home: pathlib.Path) -> None:
    """Writes searches that have ended, each for another reason, with what they publish."""
    from guild_dask.home.search_journal import SearchJournal
    from guild_dask.monitor.searches import SearchPublisher
    from guild_dask.plan.search_ends import data_for_end

    for number, end in enumerate(_search_ends()):
        run_dir = home / "runs" / f"search{number}"
        (run_dir / ".guild" / "attrs").mkdir(parents=True)
        journal = SearchJournal(str(run_dir))
        journal.add("started", host="here", pid=1)
        journal.add("ended", why=data_for_end(end))
        SearchPublisher(str(home), run_dir.name).publish([], journal.log)


ASKS = {"gpu": 1.0}


def _me() -> Any:
    from guild_dask.host import processes

    found = processes.identity(os.getpid())
    assert found
    return found


def _reasons() -> tuple[Any, ...]:
    from guild_dask.plan import reasons as r

    return (
        r.NotDefined(("gpu",)),
        r.NotDefined(("gpu:5",)),
        r.TooLarge("mem", 8e9, 4e9),
        r.TooLarge("gpu:5", 1.0, 0.0),
        r.TooLong(9.0, 3.0),
        r.NotWhole("gpu", 1.5),
        r.NoSingleWorker(("gpu", "mem")),
        r.NoWorker(),
        r.NoFreeSlot(2),
        r.InUse("gpu", 1.0, 0.0),
        r.Reserved("bbb"),
        r.AfterRuns(("bbb",)),
        r.AfterFailed("bbb", "failed"),
        r.AfterFailed("bbb", "terminated"),
        r.AfterUnknown("bbb"),
        r.AfterAmbiguous("b", ("bbb", "bcd")),
        r.AfterCycle(("aaa", "bbb")),
        r.IsScheduler("bbb"),
        r.UnreadableTag("dask-time:1x", "no time", "dask-time:90m"),
        r.CannotBeClaimed("not to be had"),
        r.StartsFailed(3),
        r.Broken("not to be read"),
        r.ToBeTriedAgain(),
        r.NoMoreStarts("paused"),
    )


def _troubles() -> tuple[Any, ...]:
    from guild_dask.plan import troubles as t

    refusals = (
        t.OtherVersion("0.0", "1.0"),
        t.NotInstalled("1.0"),
        t.HomeNotSeen("/home"),
        t.NoAnswer(),
        t.CannotStartRuns("OSError"),
        t.Paused(),
        t.Closing(),
    )
    of_workers = (t.WorkerWithoutRuns("w", each) for each in refusals)
    return (
        *of_workers,
        t.NoWorkerStarted("sbatch: error"),
        t.NoWorkerStarted(worker="w", refusal=refusals[0], others=2),
    )


def _search_ends() -> tuple[Any, ...]:
    from guild_dask.plan import search_ends as e

    return (
        e.TrialsUsed(20),
        e.OutOfTime(),
        e.TargetReached("loss", 0.5),
        e.SpaceExhausted(),
        e.FailedInARow(5, is_first=True, last="aaa"),
        e.FailedInARow(3, is_first=False, last="aaa"),
        e.MissingScalar("aaa", ("acc", "loss"), ("size",), "bbb", "maximize"),
        e.MissingScalar("aaa", ("acc",), (), "bbb", "minimize"),
        e.CannotStageTrial("no disk"),
        e.SearchDeleted(),
        e.ErrorOfItsOwn("KeyError(1)", "/home/error.log"),
    )


def read(home: pathlib.Path) -> dict[str, Any]:
    """Returns what follows from the records, with the reader's own wording where texts count."""
    from guild_dask.monitor.state import state_for_data

    state = state_for_data(json.loads((home / "state.json").read_text()))
    assert state
    return {
        "is read back": state.troubles == _troubles() and tuple(state.first_held.values()) == _reasons(),
        "explanations": _explanations(state),
        "counts": [state.impossible, state.held, [position is None for position in state.positions]],
        "remedies": [[_words(each.problem), _words(each.remedy)] for each in state.troubles],
        "ended": [_ended(each) for each in state.ended],
        "notes": _notes(home),
        "attempts": _attempts(home),
        "recovered": _recovered(home),
        "searches": _searches(home),
    }


def _searches(home: pathlib.Path) -> list[Any]:
    from guild_dask.home import search_journal
    from guild_dask.monitor import searches

    found = []
    for number, end in enumerate(_search_ends()):
        batch = f"search{number}"
        ended, published = search_journal.read(str(home / "runs" / batch)).ended, searches.read(str(home), batch)
        assert published
        assert ended == published.ended == end
        found.append([type(end).__name__, end.is_failure, _words(str(ended))])
    return found


def _explanations(state: Any) -> list[Any]:
    from guild_dask.monitor.explanation import with_scheduler
    from guild_dask.monitor.state import RunningRun, WorkerState

    busy = dataclasses.replace(
        state,
        workers=(WorkerState("w", "h", 2, 1, {"gpu": 1.0}, {}),),
        running=(RunningRun("user", "op", "w", "h", 0.0, 0.0, 1, ASKS),),
    )
    found = []
    for run in (*(each.run for each in state.first), *state.first_held):
        told = with_scheduler(run, ASKS, busy, 1, 60.0)
        found.append([told.can_start, told.command, told.position, _words(told.why), _words(told.remedy)])
    return found


def _words(text: str) -> int:
    return len(text.split())


def _ended(run: Any) -> list[Any]:
    from guild_dask.monitor.notify import facts_of_run

    return [run.end, run.cause, run.is_failure, _words(run.why), _words(facts_of_run(run)["GUILD_DASK_REASON"])]


def _notes(home: pathlib.Path) -> list[Any]:
    from guild_dask.home import claims, end_note

    notes = sorted((home / "notes").iterdir())
    found = [claims.path(home / "notes", note.stem) for note in notes]
    return [[str(note.cause), dataclasses.asdict(note.excess)] for note in map(end_note.read, found) if note]


def _attempts(home: pathlib.Path) -> list[Any]:
    from guild_dask.home import attempts, run_directory, run_info
    from guild_dask.home.outcome import cause_for_name

    past = attempts.past(str(home / "runs" / RUN))
    facts = [run_directory.attribute(str(each), run_info.NAME) for each in sorted((home / "ended").iterdir())]
    causes = [run_info.cause_in(each) for each in facts]
    return [
        [[str(each.cause), each.is_loss, each.exit_status] for each in past],
        [[name, str(cause_for_name(name)), dataclasses.asdict(excess)] for name, excess in causes],
    ]


def _recovered(home: pathlib.Path) -> list[Any]:
    """Returns the outcome of a run whose scheduler died after it decided to retry it; once for each cause."""
    from guild_dask.home import attempts, claims
    from guild_dask.home.heartbeat import Heartbeat
    from guild_dask.home.recovery import recover
    from guild_dask.home.run_queue import GuildHome

    me = _me()
    other = dataclasses.replace(me, started=me.started - 1)  # dead: this process started later
    guild_home = GuildHome(str(home), Heartbeat(str(home), "me", me))
    guild_home.heartbeat.renew()
    found = []
    for past in attempts.past(str(home / "runs" / RUN)):
        (run,) = guild_home.staged().staged
        claim = claims.Claim(RUN, "other", other, other, attempt=past.number)
        assert guild_home.claim([(run, claim)]).taken
        claims.remove(guild_home.claims_folder, RUN)
        claimed = claims.write(guild_home.claims_folder, claim)
        assert claims.mark_started(claimed)
        ((_, result),) = recover(guild_home).ended
        found.append([result.end.name, str(result.cause), result.exit_code, result.attempt])
    return found


def main() -> None:
    what, folder, *rest = sys.argv[1:]
    if rest == [REWORDED]:
        rewording.install()
    home = pathlib.Path(folder)
    if what == "write":
        write(home)
    else:
        sys.stdout.write(json.dumps(read(home)))


if __name__ == "__main__":
    main()
