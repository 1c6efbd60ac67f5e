"""Whatever lies in the place of a file of the Guild home, each reader and writer of it returns, and soon."""

import contextlib
import datetime
import os
import pathlib
import tempfile
from collections.abc import Callable

import pytest
from guild.summary import SummaryWriter
from hypothesis import given, settings
from hypothesis import strategies as st

from guild_dask.home import (
    attempts,
    claims,
    end_note,
    layout,
    record_yaml,
    run_directory,
    run_info,
    run_view,
    snapshot,
    status,
    stop_request,
    trials,
    working_directory,
)
from guild_dask.home.heartbeat import Heartbeat
from guild_dask.home.record_yaml import BadRecord
from guild_dask.home.run_directory import BrokenRun
from guild_dask.host import files, processes
from guild_dask.monitor import journal, schedulers
from tests.home.test_run_directory import make_run
from tests.support import hostile
from tests.support.deadline import soon
from tests.support.searches import BATCH, SPACE, a_search, some_trials, trial_id


def _me() -> processes.ProcessIdentity:
    me = processes.identity(os.getpid())
    assert me
    return me


RUN = "runs/aaa"
RECORDS = f"{RUN}/.guild"
CLAIMS = "dask/claims"

Use = Callable[[pathlib.Path], object]


def _claim(home: pathlib.Path) -> pathlib.Path:
    return claims.path(home / CLAIMS, "aaa")


def _restore(home: pathlib.Path) -> None:
    with files.open_folder(home / RECORDS) as folder:
        snapshot.restore(folder, home / f"{CLAIMS}/aaa.saved")


def _date_of_the_start(home: pathlib.Path) -> object:
    return datetime.datetime.fromtimestamp(trials.start_time(str(home / RUN)) or 0.0)


# The file, what is done with it, and the exceptions that the function documents.
USES: list[tuple[str, Use, tuple[type[Exception], ...]]] = [
    (f"{RECORDS}/attrs/tags", lambda home: run_directory.read_staged(str(home / RUN)), (BrokenRun,)),
    (f"{RECORDS}/attrs/flags", lambda home: run_directory.check_attributes(str(home / RUN)), (BrokenRun,)),
    (f"{RECORDS}/attrs/tags", lambda home: str(run_view.view(str(home / RUN))), ()),
    (f"{RECORDS}/attrs/label", lambda home: str(run_view.view(str(home / RUN))), ()),
    (f"{RECORDS}/attrs/flags", lambda home: str(run_view.flags(str(home / RUN))), ()),
    (f"{RECORDS}/attrs/exit_status", lambda home: status.status(str(home / RUN)), ()),
    (f"{RECORDS}/attrs/exit_status", lambda home: run_directory.record_end(str(home / RUN), 1), (OSError,)),
    (f"{RECORDS}/attrs/exit_status", lambda home: run_info.make_terminated(str(home / RUN)), ()),
    (f"{RECORDS}/attrs/stopped", lambda home: attempts.keep_former(str(home / RUN), 2), (OSError,)),
    (f"{RECORDS}/attrs/started", _date_of_the_start, ()),
    (f"{RECORDS}/attrs/dask", lambda home: run_info.recorded(str(home / RUN))[0], ()),
    (f"{RECORDS}/attrs/dask", lambda home: run_info.write(str(home / RUN), "a: 1\n"), ()),
    (f"{RECORDS}/attrs/dask", lambda home: run_info.add_end(str(home / RUN)), ()),
    (f"{RECORDS}/LOCK", lambda home: run_directory.locked_by(str(home / RUN)), ()),
    (f"{RECORDS}/LOCK.remote", lambda home: run_info.set_node(str(home / RUN), "node"), ()),
    (f"{RECORDS}/PENDING", lambda home: run_directory.set_marker(str(home / RUN), "PENDING"), (OSError,)),
    (f"{RECORDS}/opref", lambda home: run_directory.operation(str(home / RUN)), ()),
    (f"{RECORDS}/ENV", lambda home: working_directory.working_directory(str(home / RUN), "/"), ()),
    (f"{RECORDS}/attrs/more", lambda home: snapshot.save(str(home / RUN), _claim(home)), (OSError,)),
    (f"{CLAIMS}/aaa.saved", _restore, (OSError,)),
    (f"{RECORDS}/dask-attempts/record.json", lambda home: attempts.past(str(home / RUN)), (OSError,)),
    (f"{RECORDS}/output", lambda home: attempts.add(str(home / RUN), attempts.Attempt(1)), (OSError,)),
    (f"{CLAIMS}/aaa.claimed", lambda home: list(claims.all_claims(home / CLAIMS)), ()),
    (f"{CLAIMS}/aaa.claimed", lambda home: claims.is_owned_by(_claim(home), _me()), (OSError,)),
    (f"{CLAIMS}/aaa.claimed", lambda home: claims.mark_started(_claim(home), _me()), ()),
    (f"{CLAIMS}/.aaa.draft", lambda home: claims.write(home / CLAIMS, _a_claim()), (OSError,)),
    (f"{CLAIMS}/aaa.beat", lambda home: claims.last_heartbeat(home / CLAIMS, "aaa"), (OSError,)),
    (f"{CLAIMS}/aaa.ended", lambda home: end_note.read(_claim(home)), ()),
    (f"{CLAIMS}/aaa.exited", lambda home: end_note.read_exit(_claim(home), _me()), ()),
    (f"{CLAIMS}/aaa.exited", lambda home: end_note.write_exit(_claim(home), end_note.Exit(0, _me())), ()),
    (f"{CLAIMS}/aaa.stop", lambda home: stop_request.requested_cause(_claim(home)), ()),
    (f"{CLAIMS}/aaa.stop", lambda home: stop_request.request_stop(_claim(home)), (OSError,)),
    ("dask/schedulers/sss.json", lambda home: schedulers.alive(str(home)), ()),
    ("dask/schedulers/sss.json", lambda home: Heartbeat(str(home), "ttt", _me()).sweep(), ()),
    ("dask/schedulers/sss.draft", lambda home: Heartbeat(str(home), "sss", _me()).renew(), ()),
    (layout.events(RUN), lambda home: journal.read(layout.events(str(home / RUN))), ()),
]


def _a_claim() -> claims.Claim:
    return claims.Claim("aaa", "sss", _me(), _me())


@pytest.fixture
def home(tmp_path: pathlib.Path) -> pathlib.Path:
    make_run(tmp_path / RUN)
    for folder in (f"{RECORDS}/dask-attempts", CLAIMS, "dask/schedulers"):
        (tmp_path / folder).mkdir(parents=True)
    return tmp_path


@pytest.mark.parametrize("accident", sorted(hostile.ACCIDENTS))
@pytest.mark.parametrize(("file", "use", "documented"), USES, ids=lambda value: value if isinstance(value, str) else "")
def test_use_of_a_file_that_is_something_else_returns(
    home: pathlib.Path, file: str, use: Use, documented: tuple[type[Exception], ...], accident: str
) -> None:
    if (os.path.basename(file), accident) in (("output", "huge"), ("events.jsonl", "huge")):
        pytest.skip("there is no limit but the disk, or that of the journal")
    hostile.ACCIDENTS[accident](home / file)
    with soon(), contextlib.suppress(*documented):
        use(home)


def test_attributes_of_many_values_are_refused_in_little_time(home: pathlib.Path) -> None:
    # The loop reads them for each run that it claims; a record may be as large as all together.
    for text, count in ((hostile.MANY, 1), ("[" + "[]," * 40_000 + "]", 30)):
        for number in range(count):
            (home / RECORDS / f"attrs/a{number}").write_text(text)
        with soon(), pytest.raises(BrokenRun, match=r"attribute 'a[0-9]+' has too many values"):
            run_directory.check_attributes(str(home / RUN))


def test_trial_with_an_endless_event_file_is_read(tmp_path: pathlib.Path) -> None:
    a_search(tmp_path, some_trials(1), SPACE)
    with open(tmp_path / "runs" / trial_id(1) / "x.tfevents.1", "wb") as f:
        os.truncate(f.fileno(), 10**12)
    search = trials.search(str(tmp_path), BATCH)
    with soon():
        (found,) = trials.TrialReader(str(tmp_path), BATCH, search.objectives).read(search.log)
    assert found.state is trials.TrialState.COMPLETED


def test_large_event_files_of_a_trial_are_read_a_part_at_a_time(
    tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Until all is read, what the trial has achieved is not known.
    a_search(tmp_path, some_trials(1), SPACE)
    with SummaryWriter(str(tmp_path / "runs" / trial_id(1) / ".guild")) as writer:
        for step in range(5, 1000):
            writer.add_scalar("loss", float(step), step)
    monkeypatch.setattr(trials, "MOST_READ", 10_000)
    search = trials.search(str(tmp_path), BATCH)
    reader = trials.TrialReader(str(tmp_path), BATCH, search.objectives)
    states: list[trials.TrialState] = []
    while not states or states[-1] is not trials.TrialState.COMPLETED:
        (found,) = reader.read(search.log)
        states.append(found.state)
    assert states[0] is trials.TrialState.RUNNING
    assert found.values == (999.0,)


def test_state_of_a_scheduler_that_cannot_be_read_is_none(home: pathlib.Path) -> None:
    Heartbeat(str(home), "sss", _me()).renew()
    for accident in hostile.ACCIDENTS.values():
        accident(home / "dask/schedulers/sss.state")
        with soon():
            assert [each.state for each in schedulers.alive(str(home))] == [None]


@pytest.mark.parametrize("number", [2**64 - 1, -(2**70), 10**299])
def test_flags_may_have_numbers_that_are_no_machine_words(home: pathlib.Path, number: int) -> None:
    (home / RECORDS / "attrs/flags").write_text(f"seed: {number}\n")
    assert run_view.flags(str(home / RUN)) == {"seed": number}


def test_aliases_as_guild_writes_them_are_read() -> None:
    assert record_yaml.load("a: &id001 [1, 2]\nb: *id001\n") == {"a": [1, 2], "b": [1, 2]}


RUBBISH = st.text("&*ab[]{}:,-? \n<!|>'\"01.x", max_size=60)


@settings(deadline=None, max_examples=300)
@given(RUBBISH)
def test_rubbish_is_a_value_of_bounded_size_or_refused(text: str) -> None:
    with soon(), contextlib.suppress(BadRecord):
        assert len(str(record_yaml.load(text))) < 1_000_000


@settings(deadline=None, max_examples=50)
@given(st.binary(max_size=200) | RUBBISH.map(str.encode))
def test_rubbish_in_any_file_is_read(data: bytes) -> None:
    with tempfile.TemporaryDirectory() as folder:
        home = pathlib.Path(folder)
        make_run(home / RUN)
        for each in (f"{RECORDS}/dask-attempts", CLAIMS, "dask/schedulers"):
            (home / each).mkdir(parents=True)
        for file, use, documented in USES:
            path = home / file
            hostile.remove(path)
            path.write_bytes(data)
            with contextlib.suppress(*documented):
                use(home)


def test_limit_is_that_of_the_reader(tmp_path: pathlib.Path) -> None:
    (tmp_path / "file").write_bytes(b"x" * 100_000)
    assert files.content(tmp_path / "file", 100_000) == b"x" * 100_000
    with pytest.raises(OSError, match="larger than 99 kB"):
        files.content(tmp_path / "file", 99_999)
    assert files.tail(tmp_path / "file", 10) == b"x" * 10


def test_ids_of_runs_are_escaped_where_one_must_be_chosen(tmp_path: pathlib.Path) -> None:
    for name in ("aa\x1b[2J1", "aa\x1b[2J2"):
        make_run(tmp_path / name)
    with pytest.raises(run_view.NoSuchRun) as error:
        run_view.find(str(tmp_path), "aa")
    assert "\x1b" not in str(error.value)
    assert r"aa\x1b[2J1" in str(error.value)
