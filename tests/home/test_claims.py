"""Claims: who takes which run, written so that a crash at any moment leaves something that can be read."""

import dataclasses
import json
import math
import os
import pathlib
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from guild_dask.home import claims, end_note, snapshot
from guild_dask.home.claim_record import identity_for_data
from guild_dask.home.claims import Claim
from guild_dask.home.outcome import Cause
from guild_dask.host import processes
from guild_dask.plan.resources import request_for_spec


@pytest.fixture
def folder(tmp_path: pathlib.Path) -> pathlib.Path:
    return tmp_path / "dask" / "claims"


def claim_on(run_id: str, attempt: int = 1) -> Claim:
    me = processes.identity(os.getpid())
    assert me
    return Claim(run_id, "scheduler", me, me, attempt, request_for_spec("gpu=2 mem=8GB").amounts)


def found_in(folder: pathlib.Path) -> list[tuple[str, Claim | None, bool]]:
    """Returns the run, the claim and whether it is started, for each claim in the folder."""
    return [(found.run_id, found.claim, found.is_started) for found in claims.all_claims(folder)]


def is_started(folder: pathlib.Path, run_id: str) -> bool:
    """Returns whether the run was started under its present claim."""
    found = claims.present(folder, run_id)
    return found is not None and found.is_started


def names_in(folder: pathlib.Path) -> list[str]:
    return sorted(os.listdir(folder))


def test_claim_is_read_as_it_was_written(folder: pathlib.Path) -> None:
    written = claims.write(folder, claim_on("aaa"))
    assert written == claims.path(folder, "aaa")
    assert found_in(folder) == [("aaa", claim_on("aaa"), False)]
    assert names_in(folder) == ["aaa.claimed"]


def test_claim_says_when_it_was_written(folder: pathlib.Path) -> None:
    # Starting it is no writing: what happened to the run since is compared with this.
    claimed = claims.write(folder, claim_on("aaa"))
    os.utime(claimed, ns=(5, 17))
    claims.mark_started(claimed)
    assert [found.written for found in claims.all_claims(folder)] == [17]


def test_no_folder_is_no_claims(folder: pathlib.Path) -> None:
    assert list(claims.all_claims(folder)) == []
    assert not is_started(folder, "aaa")
    claims.remove(folder, "aaa")


def test_claim_is_started_once(folder: pathlib.Path) -> None:
    claimed = claims.write(folder, claim_on("aaa"))
    assert not is_started(folder, "aaa")
    assert claims.mark_started(claimed)
    assert is_started(folder, "aaa")
    assert found_in(folder) == [("aaa", claim_on("aaa"), True)]
    assert not claims.mark_started(claimed)


def test_of_many_that_start_a_claim_at_once_one_does(folder: pathlib.Path) -> None:
    with ThreadPoolExecutor(4) as threads:
        for _ in range(50):
            claimed = claims.write(folder, claim_on("aaa"))
            together = threading.Barrier(4)

            def start(_: int, claimed: pathlib.Path = claimed, together: threading.Barrier = together) -> bool:
                together.wait()
                return claims.mark_started(claimed)

            assert sum(threads.map(start, range(4))) == 1
            claims.remove(folder, "aaa")


def test_claim_that_was_removed_cannot_be_started(folder: pathlib.Path) -> None:
    # The scheduler that takes a run back and the process that starts it need no lock between them.
    claimed = claims.write(folder, claim_on("aaa"))
    claims.remove(folder, "aaa")
    assert not claims.mark_started(claimed)
    assert names_in(folder) == []


def test_removing_takes_a_started_claim_too(folder: pathlib.Path) -> None:
    claims.mark_started(claims.write(folder, claim_on("aaa")))
    claims.remove(folder, "aaa")
    assert names_in(folder) == []


def test_new_claim_replaces_what_is_left_of_an_earlier_one(folder: pathlib.Path) -> None:
    # A run that was started long ago and staged anew has not started under its new claim.
    claims.mark_started(claims.write(folder, dataclasses.replace(claim_on("aaa"), owner=_dead())))
    claims.take(folder, str(a_marker(folder)), claim_on("aaa", attempt=2))
    assert found_in(folder) == [("aaa", claim_on("aaa", attempt=2), False)]


def test_claims_of_other_runs_are_left_alone(folder: pathlib.Path) -> None:
    for run_id in ("aaa", "aaa.b", "aab"):
        claims.write(folder, claim_on(run_id))
    claims.mark_started(claims.path(folder, "aaa.b"))
    claims.remove(folder, "aaa")
    assert found_in(folder) == [("aaa.b", claim_on("aaa.b"), True), ("aab", claim_on("aab"), False)]


def test_owner_of_a_claim_can_change(folder: pathlib.Path) -> None:
    starter = dataclasses.replace(claim_on("aaa").owner, pid=1)
    claims.write(folder, claim_on("aaa"))
    claims.write(folder, dataclasses.replace(claim_on("aaa"), owner=starter))
    (found,) = claims.all_claims(folder)
    assert found.claim
    assert (found.claim.owner, found.claim.scheduler) == (starter, claim_on("aaa").scheduler)


def test_reader_sees_a_whole_claim_or_none(folder: pathlib.Path) -> None:
    claims.write(folder, claim_on("aaa"))
    with ThreadPoolExecutor(1) as threads:
        written = threads.submit(lambda: [claims.write(folder, claim_on("aaa", number)) for number in range(500)])
        while not written.done():
            (found,) = claims.all_claims(folder)
            assert found.claim is not None


def test_claim_that_goes_while_claims_are_listed_is_left_out(folder: pathlib.Path) -> None:
    # Taken for an unreadable one, it would be staged again, although another scheduler may have it now.
    for run_id in ("aaa", "bbb", "ccc"):
        claims.write(folder, claim_on(run_id))
    listed = claims.all_claims(folder)
    assert next(listed).run_id == "aaa"
    claims.remove(folder, "bbb")
    assert [found.run_id for found in listed] == ["ccc"]


def test_other_files_are_no_claims(folder: pathlib.Path) -> None:
    folder.mkdir(parents=True)
    # The first is a draft of a process that died while it wrote.
    for name in (".aaa.draft", ".aaa.123", "README", "aaa.claimed~", "claimed"):
        (folder / name).write_text("{}")
    assert list(claims.all_claims(folder)) == []


@pytest.mark.parametrize("suffix", [claims.CLAIMED, claims.STARTED])
def test_claim_that_is_a_folder_is_found_and_is_none(folder: pathlib.Path, suffix: str) -> None:
    (folder / f"aaa{suffix}").mkdir(parents=True)
    assert found_in(folder) == [("aaa", None, suffix == claims.STARTED)]


SCALARS = st.none() | st.booleans() | st.integers() | st.floats() | st.text()
JSON = st.recursive(SCALARS, lambda some: st.lists(some) | st.dictionaries(st.text(), some), max_leaves=5)
WHOLE = claim_on("aaa").as_data()
CONTENTS = (
    st.binary()
    | JSON.map(lambda value: json.dumps(value).encode())
    # Claims with a part that is missing or means nothing.
    | st.fixed_dictionaries({}, optional={key: JSON | st.just(value) for key, value in WHOLE.items()}).map(
        lambda value: json.dumps(value).encode()
    )
)


@settings(deadline=None, max_examples=200)
@given(CONTENTS)
@example(json.dumps({**WHOLE, "attempt": math.inf}).encode())
@example(json.dumps({**WHOLE, "requests": {"gpu": 10**400}}).encode())
@example(json.dumps({**WHOLE, "owner": {**WHOLE["owner"], "pid": math.inf}}).encode())
def test_whatever_is_written_in_a_claim_is_a_claim_or_none(contents: bytes) -> None:
    with tempfile.TemporaryDirectory() as folder:
        pathlib.Path(folder, "aaa.claimed").write_bytes(contents)
        (found,) = claims.all_claims(pathlib.Path(folder))
    assert found.run_id == "aaa"
    assert found.claim is None or isinstance(found.claim, Claim)


def test_identity_is_read_as_it_was_written() -> None:
    me = processes.identity(os.getpid())
    assert me
    assert identity_for_data(json.loads(json.dumps(me.as_data()))) == me


FIELDS = st.fixed_dictionaries({}, optional=dict.fromkeys(("pid", "started", "boot", "host"), JSON))


@settings(deadline=None, max_examples=200)
@given(JSON | FIELDS)
@example({"pid": math.inf, "started": 1, "boot": "", "host": ""})
@example({"pid": 1, "started": 10**400, "boot": "", "host": ""})
def test_whatever_is_written_as_an_identity_is_one_or_none(data: object) -> None:
    found = identity_for_data(data)
    assert found is None or processes.is_alive(found) in (None, False)


def run_without_disk(folder: pathlib.Path, code: str) -> None:
    """Runs code in a process for which every write to a file fails, as on a full disk."""
    limit = "import resource; resource.setrlimit(resource.RLIMIT_FSIZE, (0, 0))"
    lines = [
        "import pathlib, sys",
        "from guild_dask.home import claims",
        "from guild_dask.host import processes",
        limit,
        "folder = pathlib.Path(sys.argv[1])",
    ]
    subprocess.run([sys.executable, "-c", "\n".join([*lines, code]), str(folder)], check=True)


def test_claim_that_cannot_be_written_leaves_nothing_behind(folder: pathlib.Path) -> None:
    code = """
me = processes.identity(processes.os.getpid())
try:
    claims.write(folder, claims.Claim("aaa", "scheduler", me, me))
except OSError:
    sys.exit(0)
sys.exit("it was written")
"""
    run_without_disk(folder, code)
    assert names_in(folder) == []


def test_claim_can_be_started_and_removed_when_the_disk_is_full(folder: pathlib.Path) -> None:
    for run_id in ("aaa", "bbb"):
        claims.write(folder, claim_on(run_id))
    run_without_disk(folder, 'assert claims.mark_started(folder / "aaa.claimed"); claims.remove(folder, "bbb")')
    assert found_in(folder) == [("aaa", claim_on("aaa"), True)]


def a_marker(folder: pathlib.Path) -> pathlib.Path:
    marker = folder.parent / "STAGED"
    marker.parent.mkdir(parents=True, exist_ok=True)
    marker.touch()
    return marker


def test_run_is_staged_or_claimed_and_never_both(folder: pathlib.Path) -> None:
    marker = a_marker(folder)
    claims.take(folder, str(marker), claim_on("aaa"))
    assert found_in(folder) == [("aaa", claim_on("aaa"), False)]
    assert not marker.exists()
    assert claims.withdraw(folder, "aaa")
    claims.give_back(folder, "aaa", str(marker))
    assert found_in(folder) == []
    assert marker.exists()


def test_run_that_is_not_staged_cannot_be_claimed(folder: pathlib.Path) -> None:
    with pytest.raises(FileNotFoundError):
        claims.take(folder, str(folder.parent / "STAGED"), claim_on("aaa"))
    assert found_in(folder) == []


def test_claim_that_cannot_be_written_leaves_the_run_staged(folder: pathlib.Path) -> None:
    marker = a_marker(folder)
    claims.write(folder, claim_on("aaa"))
    code = f"""
try:
    claims.take(folder, {str(marker)!r}, claims.present(folder, "aaa").claim)
except OSError:
    sys.exit(0)
sys.exit("it was written")
"""
    run_without_disk(folder, code)
    assert marker.exists()
    assert names_in(folder) == []


@pytest.mark.parametrize("link", [os.symlink, os.link])
def test_file_that_a_staged_marker_is_a_link_to_is_left_alone(
    folder: pathlib.Path, link: Callable[[pathlib.Path, pathlib.Path], None]
) -> None:
    other, marker = folder.parent / "other", folder.parent / "STAGED"
    other.parent.mkdir(parents=True)
    other.touch()
    link(other, marker)
    claims.take(folder, str(marker), claim_on("aaa"))
    assert other.read_text() == ""
    assert found_in(folder) == [("aaa", claim_on("aaa"), False)]
    assert not marker.exists()


def test_claim_replaces_what_is_in_its_marker(folder: pathlib.Path) -> None:
    marker = a_marker(folder)
    marker.write_text("x" * 10_000)  # as in one that was a claim before
    claims.take(folder, str(marker), claim_on("aaa"))
    assert found_in(folder) == [("aaa", claim_on("aaa"), False)]


def test_claim_that_is_withdrawn_before_it_is_written_is_not_made_anew(
    folder: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    marker = a_marker(folder)
    real_open = os.open

    def withdraw_and_open(file: Any, flags: int, *mode: int, **within: Any) -> int:
        if str(file).endswith(claims.CLAIMED) and flags & os.O_WRONLY:
            assert claims.withdraw(folder, "aaa")
        return real_open(file, flags, *mode, **within)

    monkeypatch.setattr(os, "open", withdraw_and_open)
    with pytest.raises(FileNotFoundError):
        claims.take(folder, str(marker), claim_on("aaa"))
    assert marker.exists()
    assert names_in(folder) == []


def test_removed_claim_leaves_nothing_behind(folder: pathlib.Path) -> None:
    written = claims.write(folder, claim_on("aaa"))
    written.with_suffix(claims.SAVED).touch()
    (folder / ".aaa.draft").touch()
    claims.remove(folder, "aaa")
    assert not list(folder.iterdir())


class _Killed(BaseException):
    """Stands for the end of the process: nothing that handles errors sees it."""


@pytest.mark.parametrize(
    "write",
    [
        lambda claimed, run_dir: claims.write(claimed.parent, claim_on("aaa", attempt=2)),
        lambda claimed, run_dir: end_note.write(claimed, Cause.STOPPED),
        lambda claimed, run_dir: snapshot.save(str(run_dir), claimed.with_suffix(claims.SAVED)),
    ],
    ids=["claim", "end note", "snapshot"],
)
def test_what_a_killed_process_was_about_to_write_beside_a_claim_goes_with_it(
    folder: pathlib.Path,
    tmp_path: pathlib.Path,
    monkeypatch: pytest.MonkeyPatch,
    write: Callable[[pathlib.Path, pathlib.Path], object],
) -> None:
    def be_killed(*_paths: object, **_folders: object) -> None:
        raise _Killed

    (tmp_path / ".guild").mkdir()
    claimed = claims.write(folder, claim_on("aaa"))
    with monkeypatch.context() as patched:
        patched.setattr(os, "replace", be_killed)
        with pytest.raises(_Killed):
            write(claimed, tmp_path)
    assert names_in(folder) != ["aaa.claimed"]
    claims.remove(folder, "aaa")
    assert not names_in(folder)


def test_claim_that_becomes_a_started_one_while_the_folder_is_read_is_not_missed(
    folder: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # What a run of a dead scheduler uses must be counted, whatever the moment of the look.
    claimed = claims.write(folder, claim_on("aaa"))
    listed = os.listdir

    def list_and_then_start(path: pathlib.Path) -> list[str]:
        names = listed(path)
        claims.mark_started(claimed)
        return names

    monkeypatch.setattr(os, "listdir", list_and_then_start)
    assert found_in(folder) == [("aaa", claim_on("aaa"), True)]


def _dead() -> processes.ProcessIdentity:
    return dataclasses.replace(_me(), started=1.0)


def _me() -> processes.ProcessIdentity:
    me = processes.identity(os.getpid())
    assert me
    return me


def test_run_that_starts_while_it_is_withdrawn_is_not_staged_again(folder: pathlib.Path) -> None:
    # The process that renames the claim first decides.
    claim = claim_on("aaa")
    path = claims.write(folder, claim)
    assert claims.mark_started(path, _me())
    assert not claims.withdraw(folder, "aaa")
    assert is_started(folder, "aaa")


def test_claim_that_was_withdrawn_cannot_be_handed_over_or_started(folder: pathlib.Path) -> None:
    claim = claim_on("aaa")
    path = claims.write(folder, claim)
    assert claims.withdraw(folder, "aaa")
    assert not claims.hand_over(folder, claim, _me())
    assert not claims.mark_started(path, _me())
    assert [found.is_started for found in claims.all_claims(folder)] == [False]


def test_claim_that_is_withdrawn_in_the_middle_of_handing_over_is_not_made_anew(
    folder: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # The scheduler of a worker that lives has died, and another one stages the run again at this very moment.
    claim = claim_on("aaa")
    claims.write(folder, claim)
    real_open = os.open

    def withdraw_and_open(file: Any, flags: int, *mode: int, **within: Any) -> int:
        if str(file).endswith(claims.HANDING) and flags & os.O_RDWR:
            assert claims.withdraw(folder, "aaa")
        return real_open(file, flags, *mode, **within)

    monkeypatch.setattr(os, "open", withdraw_and_open)
    assert not claims.hand_over(folder, claim, _me())
    assert sorted(file.suffix for file in folder.iterdir()) == [claims.WITHDRAWN]


def test_claim_on_a_run_whose_id_begins_with_a_dot_is_found_and_drafts_are_not(folder: pathlib.Path) -> None:
    claims.write(folder, claim_on(".x"))
    (folder / ".aaa.draft").touch()
    (folder / ".aaa.ended-draft").touch()
    assert [run_id for run_id, _, _ in found_in(folder)] == [".x"]
    claims.remove(folder, ".x")
    (folder / f".y{claims.SAVED}").touch()
    assert claims.strays(folder) == [".y"]
