"""One run directory, as Guild writes it and as an accident leaves it."""

import contextlib
import errno
import os
import pathlib
import shutil
import tempfile
from collections.abc import Callable

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from guild_dask.home import layout, run_directory, working_directory
from guild_dask.home.run_directory import BrokenRun, Staged
from tests.support import hostile
from tests.support.failing_files import unreadable_file
from tests.support.sandbox import Guild

checked = settings(deadline=None, max_examples=200)

OPREF = "guildfile:/project/guild.yml abc123 '' op"


def make_run(run_dir: pathlib.Path, **attributes: str) -> pathlib.Path:
    """Returns a run directory that is staged and whole, with these attributes over the usual ones."""
    attrs = run_dir / ".guild" / "attrs"
    attrs.mkdir(parents=True)
    (run_dir / ".guild" / "opref").write_text(OPREF)
    (run_dir / ".guild" / "STAGED").touch()
    for name, text in {"started": "1700000000000000\n", **attributes}.items():
        (attrs / name).write_text(text)
    return run_dir


@pytest.fixture
def run_dir(tmp_path: pathlib.Path) -> pathlib.Path:
    return make_run(tmp_path / "runs" / "aaa")


# What Guild itself writes


@pytest.fixture
def staged_by_guild(guild: Guild, guild_home: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> pathlib.Path:
    project = pathlib.Path("it's a project")
    project.mkdir()
    monkeypatch.chdir(project)
    pathlib.Path("guild.yml").write_text("op:\n  exec: 'true'\n")
    guild("run op --stage --run-id aaa --tag dask:gpu=1 --tag other --tag 'dask:mem=8GB foo=2' -y")
    return guild_home / "runs" / "aaa"


def test_run_that_guild_staged_is_read(staged_by_guild: pathlib.Path) -> None:
    run_dir = str(staged_by_guild)
    found = run_directory.read_staged(run_dir)
    assert found == Staged("aaa", run_dir, found.since, ("dask:gpu=1", "dask:mem=8GB foo=2"))
    assert run_directory.is_staged(run_dir)
    assert not run_directory.is_queue(run_dir)
    assert run_directory.locked_by(run_dir) is None
    # Microseconds, as Guild counts.
    assert abs(found.since / 1e6 - staged_by_guild.stat().st_mtime) < 3600
    # The folder's name must come out of Guild's quoting.
    assert working_directory.working_directory(run_dir, "/") == os.getcwd()


def test_tagging_and_staging_anew_change_the_signature(staged_by_guild: pathlib.Path, guild: Guild) -> None:
    run_dir = str(staged_by_guild)
    before = run_directory.staged_signature(run_dir)
    assert run_directory.staged_signature(run_dir) == before
    guild("tag --add dask:late=1 aaa -y")
    tagged = run_directory.staged_signature(run_dir)
    assert tagged != before
    assert "dask:late=1" in run_directory.read_staged(run_dir).tags
    run_directory.clear_markers(run_dir, "STAGED")
    run_directory.set_marker(run_dir, "STAGED")
    os.utime(layout.marker(run_dir, layout.STAGED), ns=(1, 1))
    assert run_directory.staged_signature(run_dir) != tagged


# Markers


def test_markers_come_and_go(run_dir: pathlib.Path) -> None:
    assert not run_directory.has(str(run_dir), "PENDING")
    run_directory.set_marker(str(run_dir), "PENDING")
    assert run_directory.has(str(run_dir), "PENDING")
    run_directory.clear_markers(str(run_dir), "PENDING")
    run_directory.clear_markers(str(run_dir), "PENDING")
    assert not run_directory.has(str(run_dir), "PENDING")


def test_run_that_is_still_being_staged_is_not_staged(run_dir: pathlib.Path) -> None:
    # Guild marks it as pending first and takes that away last.
    assert run_directory.is_staged(str(run_dir))
    run_directory.set_marker(str(run_dir), "PENDING")
    assert not run_directory.is_staged(str(run_dir))


def test_recorded_end_is_what_guild_would_have_written(run_dir: pathlib.Path) -> None:
    run_directory.set_marker(str(run_dir), "LOCK")
    run_directory.record_end(str(run_dir), -9)
    assert run_directory.attribute(str(run_dir), "exit_status") == -9
    assert run_directory.attribute(str(run_dir), "stopped") > 1700000000000000
    assert not run_directory.has(str(run_dir), "LOCK")


# Attributes


def test_run_without_tags_asks_for_nothing(run_dir: pathlib.Path) -> None:
    assert run_directory.read_staged(str(run_dir)) == Staged("aaa", str(run_dir), 1700000000000000, ())


def test_only_tags_that_begin_like_ours_are_read(tmp_path: pathlib.Path) -> None:
    tags = "[a, 'dask:b=1', 'Dask:c=1', 'x dask:d=1', 'dask:', 3, null, [dask:e=1], dask:f=1]"
    assert run_directory.read_staged(str(make_run(tmp_path / "aaa", tags=tags))).tags == (
        "dask:b=1",
        "Dask:c=1",  # it does not count, and is warned about
        "dask:",
        "dask:f=1",
    )


def test_run_that_says_when_it_was_initialized_needs_no_more(tmp_path: pathlib.Path) -> None:
    run_dir = make_run(tmp_path / "aaa", started="", initialized="17")
    assert run_directory.read_staged(str(run_dir)).since == 17


def test_attribute_that_is_not_there_is_none(run_dir: pathlib.Path) -> None:
    assert run_directory.attribute(str(run_dir), "exit_status") is None


# Accidents


def remove(path: pathlib.Path) -> None:
    shutil.rmtree(path) if path.is_dir() else path.unlink()


def replace_by_folder(path: pathlib.Path) -> None:
    path.unlink(missing_ok=True)
    path.mkdir()


def replace_by_file(path: pathlib.Path) -> None:
    remove(path)
    path.write_text("not a folder")


def replace_by_loop(path: pathlib.Path) -> None:
    with contextlib.suppress(FileNotFoundError):
        remove(path)
    path.symlink_to(path)


def write(data: bytes) -> Callable[[pathlib.Path], object]:
    def accident(path: pathlib.Path) -> None:
        path.write_bytes(data)

    return accident


ACCIDENTS = [
    (".guild/opref", remove, "names no operation"),
    (".guild/opref", replace_by_folder, "cannot read its operation"),
    (".guild/opref", replace_by_loop, "cannot read its operation"),
    (".guild/opref", write(b""), "names no operation"),
    (".guild/opref", write(b"half of"), "names no operation"),
    (".guild/opref", write(b"guildfile:'/project x y z"), "names no operation"),
    (".guild/opref", write(b"\xff\xfe a b c"), "cannot read its operation"),
    (".guild/attrs", remove, "has no time of staging"),
    (".guild/attrs", replace_by_file, "cannot read attribute 'started'"),
    (".guild/attrs", replace_by_loop, "cannot read attribute 'started'"),
    (".guild/attrs/started", remove, "has no time of staging"),
    (".guild/attrs/started", write(b""), "has no time of staging"),
    (".guild/attrs/started", write(b"yesterday"), "has no time of staging"),
    (".guild/attrs/started", write(b"2023-13-45"), "attribute 'started' is not YAML"),
    (".guild/attrs/started", write(b"1" + b"0" * 400), "attribute 'started' has a number of more than 300 digits"),
    (".guild/attrs/started", write(str(2**62).encode()), "has no time of staging"),
    (".guild/attrs/started", write(b"-5"), "has no time of staging"),
    (".guild/attrs/tags", replace_by_folder, "cannot read attribute 'tags'"),
    (".guild/attrs/tags", replace_by_loop, "cannot read attribute 'tags'"),
    (".guild/attrs/tags", write(b"[a, b"), "attribute 'tags' is not YAML"),
    (".guild/attrs/tags", write(b"\0\0\0\0"), "attribute 'tags' is not YAML"),
    (".guild/attrs/tags", write(b"\xff"), "cannot read attribute 'tags'"),
    (".guild/attrs/tags", write(b"dask:gpu=1"), "attribute 'tags' is not a list"),
    (".guild/attrs/tags", write(b"!!timestamp dask"), "attribute 'tags' is not YAML"),
    (".guild/attrs/tags", write(b"!!bool dask"), "attribute 'tags' is not YAML"),
    (".guild/attrs/tags", write(b"!!python/object:os.system {}"), "attribute 'tags' is not YAML"),
    (".guild/attrs/tags", hostile.by_pipe, "cannot read attribute 'tags': it is a named pipe, not a file"),
    (".guild/attrs/tags", hostile.by_device, "cannot read attribute 'tags': it is a device, not a file"),
    (".guild/attrs/tags", hostile.by_socket, "cannot read attribute 'tags'"),
    (".guild/attrs/tags", hostile.by_huge_file, "cannot read attribute 'tags': it is larger than 80 kB"),
    (".guild/attrs/tags", hostile.text(hostile.ALIASES), "attribute 'tags' grows to more than 200 kB through aliases"),
    (".guild/attrs/tags", hostile.text(hostile.MERGED), "attribute 'tags' grows to more than 200 kB through aliases"),
    (".guild/attrs/tags", hostile.text(hostile.ITSELF), "attribute 'tags' has an alias of nothing, or of itself"),
    (".guild/attrs/tags", hostile.text(hostile.DEEP), "attribute 'tags' is nested more than 50 levels deep"),
    (".guild/attrs/tags", write(b"0x" + b"f" * 19_000), "attribute 'tags' is not YAML"),
    (".guild/attrs/tags", write(b"0001-01-01 00:00:00+23:00"), "attribute 'tags' is not"),  # by version of PyYAML
    (".guild/attrs/flags", hostile.by_pipe, "cannot read attribute 'flags': it is a named pipe, not a file"),
    (".guild/attrs/flags", hostile.by_huge_file, "cannot read attribute 'flags': it is larger than 4000 kB"),
    (".guild/opref", hostile.by_pipe, "cannot read its operation: it is a named pipe, not a file"),
    (".guild/ENV", hostile.by_pipe, "cannot read its file 'ENV': it is a named pipe, not a file"),
    (".guild/output", hostile.by_pipe, "cannot read its file 'output': it is a named pipe, not a file"),
    (".guild/LOCK", hostile.by_pipe, "cannot read its file 'LOCK': it is a named pipe, not a file"),
    (".guild", remove, "names no operation"),
    (".guild", replace_by_file, "cannot read its operation"),
    (".guild", replace_by_loop, "cannot read its operation"),
    (".", remove, "names no operation"),
    (".", replace_by_file, "cannot read its operation"),
    (".", replace_by_loop, "cannot read its operation"),
]


def _read_as_schedulers_do(run_dir: str) -> None:
    run_directory.read_staged(run_dir)
    run_directory.check_attributes(run_dir)  # when the run is claimed


@pytest.mark.parametrize(("path", "accident", "problem"), ACCIDENTS)
def test_broken_run_says_what_is_wrong_with_it(
    run_dir: pathlib.Path, path: str, accident: Callable[[pathlib.Path], object], problem: str
) -> None:
    accident(run_dir / path)
    with pytest.raises(BrokenRun, match=problem) as error:
        _read_as_schedulers_do(str(run_dir))
    # It becomes a part of a log line.
    assert str(error.value).isprintable()


@pytest.mark.parametrize(("path", "accident", "problem"), ACCIDENTS)
def test_broken_run_breaks_nothing_that_looks_at_all_runs(
    run_dir: pathlib.Path, path: str, accident: Callable[[pathlib.Path], object], problem: str
) -> None:
    accident(run_dir / path)
    assert not run_directory.is_queue(str(run_dir))
    assert run_directory.locked_by(str(run_dir)) is None
    assert working_directory.working_directory(str(run_dir), "/default") == "/default"
    assert run_directory.has(str(run_dir), "STAGED") is (path not in (".guild", "."))


TEXTS = st.binary() | st.text().map(str.encode) | st.text("[]{}:,-!&*'\"#\n 019axdsk=_.e<", max_size=30).map(str.encode)


@checked
@given(TEXTS, TEXTS, TEXTS)
@example(b"1", b"[0x" + b"f" * 5000 + b"]", OPREF.encode())  # more digits than Python writes
@example(b"0b_", b"[]", OPREF.encode())
@example(b"!!int ''", b"[]", OPREF.encode())
def test_whatever_is_in_the_files_a_run_is_read_or_broken(started: bytes, tags: bytes, opref: bytes) -> None:
    with tempfile.TemporaryDirectory() as folder:
        run_dir = make_run(pathlib.Path(folder, "aaa"))
        (run_dir / ".guild/attrs/started").write_bytes(started)
        (run_dir / ".guild/attrs/tags").write_bytes(tags)
        with contextlib.suppress(BrokenRun):
            found = run_directory.read_staged(str(run_dir))
            assert all(isinstance(spec, str) for spec in found.tags)
        (run_dir / ".guild/opref").write_bytes(opref)
        with contextlib.suppress(BrokenRun):
            run_directory.read_staged(str(run_dir))
        assert run_directory.is_queue(str(run_dir)) in (True, False)
        assert os.path.isdir(working_directory.working_directory(str(run_dir), "/"))


@checked
@given(TEXTS, st.binary())
@example(b"export CMD_DIR='/", b"-1")
@example(b"export CMD_DIR=/\0", b"1" * 5000)
def test_whatever_is_in_the_lock_and_environment_of_a_run_is_read(environ: bytes, lock: bytes) -> None:
    with tempfile.TemporaryDirectory() as folder:
        run_dir = make_run(pathlib.Path(folder, "aaa"))
        (run_dir / ".guild/ENV").write_bytes(environ)
        (run_dir / ".guild/LOCK").write_bytes(lock)
        assert os.path.isdir(working_directory.working_directory(str(run_dir), "/"))
        pid = run_directory.locked_by(str(run_dir))
        assert pid is None or pid > 0


# What else is told about a run


@pytest.mark.parametrize(
    ("opref", "is_queue"),
    [
        ("builtin:guild-dask 0.1 dask scheduler", True),
        ("builtin:guildai 0.9 queue queue", False),
        ("builtin:guildai 0.9 '' queue", True),
        ("guildfile:/project/guild.yml abc '' queue2", False),
        ("guildfile:/project/guild.yml abc '' queue", False),
        (OPREF, False),
    ],
)
def test_queues_and_schedulers_are_known(run_dir: pathlib.Path, opref: str, is_queue: bool) -> None:
    (run_dir / ".guild/opref").write_text(opref)
    assert run_directory.is_queue(str(run_dir)) is is_queue
    assert run_directory.read_staged(str(run_dir)).is_queue is is_queue


@pytest.mark.parametrize(
    ("batch", "proto", "is_queue"),
    [
        ("builtin:guildai 0.9.0 '' +", "builtin:guild-dask 0.1 dask scheduler", True),
        ("builtin:guildai 0.9.0 skopt random", "builtin:guildai 0.9 '' queue", True),
        ("builtin:guildai 0.9.0 '' +", OPREF, False),
    ],
)
def test_batch_of_schedulers_is_one(run_dir: pathlib.Path, batch: str, proto: str, is_queue: bool) -> None:
    (run_dir / ".guild/proto/.guild").mkdir(parents=True)
    (run_dir / ".guild/opref").write_text(batch)
    (run_dir / ".guild/proto/.guild/opref").write_text(proto)
    assert run_directory.read_staged(str(run_dir)).is_queue is is_queue


def test_process_that_runs_a_run_is_told(run_dir: pathlib.Path) -> None:
    (run_dir / ".guild/LOCK").write_text(f"{os.getpid()}\n")
    assert run_directory.locked_by(str(run_dir)) == os.getpid()


def test_each_start_and_end_of_a_run_is_told_from_the_one_before_whatever_the_clock_says(run_dir: pathlib.Path) -> None:
    seen = [run_directory.recorded_start(str(run_dir))]
    for path, text in (("LOCK", "17"), ("attrs/exit_status", "0"), ("attrs/stopped", "5"), ("attrs/stopped", "4")):
        (run_dir / ".guild" / path).write_text(f"{text}\n")
        os.utime(run_dir / ".guild" / path, ns=(0, 1))
        seen.append(run_directory.recorded_start(str(run_dir)))
    assert len(set(seen)) == len(seen)
    assert [each.end for each in seen] == ["", "", "0", "0 5", "0 4"]
    assert [run_directory.recorded_start_for_text(each.as_text()) for each in seen] == seen


def test_run_is_started_where_it_was_staged(run_dir: pathlib.Path, tmp_path: pathlib.Path) -> None:
    (run_dir / ".guild/ENV").write_text(f"export A=1\nexport CMD_DIR='{tmp_path}'\nexport B=2\n")
    assert working_directory.working_directory(str(run_dir), "/") == str(tmp_path)


def test_trial_is_started_in_its_project(run_dir: pathlib.Path, tmp_path: pathlib.Path) -> None:
    # It was staged in the run directory of its batch, which is deleted.
    (run_dir.parent / "batch").mkdir()
    (run_dir / ".guild/ENV").write_text(f"export CMD_DIR={run_dir.parent / 'batch'}\n")
    assert working_directory.working_directory(str(run_dir), "/") == "/"
    (run_dir / ".guild/opref").write_text(f"guildfile:{tmp_path}/guild.yml abc '' op")
    assert working_directory.working_directory(str(run_dir), "/") == str(tmp_path)
    (run_dir / ".guild/opref").write_text(f"script:{tmp_path} abc '' op.py")
    assert working_directory.working_directory(str(run_dir), "/") == str(tmp_path)


def test_directory_that_cannot_be_entered_is_passed_over(
    run_dir: pathlib.Path, tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Its own entry in the folder above can be seen; nothing inside of it can.
    locked, project = tmp_path / "locked", tmp_path / "project"
    locked.mkdir()
    project.mkdir()
    (run_dir / ".guild/ENV").write_text(f"export CMD_DIR={locked}\n")
    (run_dir / ".guild/opref").write_text(f"guildfile:{project}/guild.yml abc '' op")
    with unreadable_file(monkeypatch, f"{locked}/.", error=errno.EACCES):
        assert working_directory.working_directory(str(run_dir), "/") == str(project)
        (run_dir / ".guild/opref").write_text(f"guildfile:{locked}/guild.yml abc '' op")
        assert working_directory.working_directory(str(run_dir), "/") == "/"


# What it needs


def _operation_that_needs(count: int) -> str:
    """Returns Guild's record of an operation that needs the outputs of so many runs."""
    runs = "".join(f"      - '{number:032x}'\n" for number in range(count))
    return f"deps:\n- config:\n    operation:prepare:\n{runs}  sources:\n  - operation: prepare\n"


def test_run_that_needs_thousands_of_runs_waits_for_all_of_them(tmp_path: pathlib.Path) -> None:
    run_dir = make_run(tmp_path / "aaa", op=_operation_that_needs(2_500))
    assert len(run_directory.read_staged(str(run_dir)).needs) == 2_500


def test_run_that_comes_after_too_many_runs_is_broken(tmp_path: pathlib.Path) -> None:
    # Each is looked up at each poll.
    run_dir = make_run(tmp_path / "aaa", op=_operation_that_needs(10_000))
    assert len(run_directory.read_staged(str(run_dir)).needs) == 10_000
    (run_dir / ".guild" / "attrs" / "tags").write_text("[dask-after:bbb]\n")
    with pytest.raises(BrokenRun, match="comes after more than 10000 runs"):
        run_directory.read_staged(str(run_dir))


@pytest.mark.parametrize(
    "op", ["operation: [\n", _operation_that_needs(40_000), "operation: \xff"], ids=["", "large", "bytes"]
)
def test_run_is_broken_if_what_it_needs_cannot_be_read(tmp_path: pathlib.Path, op: str) -> None:
    # It would start without waiting, or without the devices that it was given.
    run_dir = make_run(tmp_path / "aaa")
    (run_dir / ".guild" / "attrs" / "op").write_bytes(op.encode("latin-1"))
    with pytest.raises(BrokenRun, match="attribute 'op'"):
        run_directory.read_staged(str(run_dir))


def test_run_with_an_impossible_id_does_not_exist() -> None:
    assert not run_directory.is_run("a\0b")
    assert not run_directory.is_folder("a\0b")
