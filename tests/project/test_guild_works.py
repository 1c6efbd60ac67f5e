"""Guild itself works where guild-dask is installed, on the Python that runs this test, and prints no warning.

guildai 0.9.0 alone does not: see guild_dask/mends/, and the other requirements in setup.py.
"""

import csv
import json
import pathlib
import re
import urllib.error
import urllib.request

import pytest

from guild_dask.home.run_queue import guild_home
from guild_dask.settings import flags
from tests.support.sandbox import Finished, Guild, Sandbox, free_port, wait_until
from tests.support.scheduling import NO_DASHBOARD

pytestmark = pytest.mark.every_python

ONCE = f"run dask:scheduler run-once=yes {NO_DASHBOARD} -y"

# As Python and Guild write them.
_COMPLAINT = re.compile(r"Warning\b|WARNING|ERROR|Traceback|Sentinel")
_LISTED = re.compile(r"^\[\d+:(\S+)\]\s+(\S+)\s+\S+ \S+\s+(\w+)", re.MULTILINE)

STEPS = """
op:
  main: op
  flags:
    sleep: 0
steps:
  steps:
    - op
    - op sleep=0.1
"""

CLICK_SCRIPT = """
import click

@click.command()
@click.option("--x", default=1)
@click.option("--name")
def main(x, name):
    print("name is", name)
    print("loss:", x * 2)

if __name__ == "__main__":
    main()
"""


def clean(finished: Finished) -> str:
    """Returns what a command printed, and fails if that contains a warning."""
    assert not _COMPLAINT.search(finished.output), finished
    return finished.output


def listed(guild: Guild) -> list[tuple[str, str, str]]:
    """Returns the id, the operation and the status of each run that `guild runs` shows, the oldest first."""
    return _LISTED.findall(clean(guild("runs")))[::-1]


def statuses(guild: Guild) -> dict[str, str]:
    """Returns the status of the last run of each operation."""
    return {operation: status for _, operation, status in listed(guild)}


def test_check_lists_the_plugin(guild: Guild, guild_home: pathlib.Path) -> None:
    plugins = re.search(r"^installed_plugins: +(.*)$", clean(guild("check --offline")), re.MULTILINE)
    assert plugins
    assert "guild_dask" in plugins.group(1).split(", ")


def test_help_of_the_operation_is_ours_and_has_every_flag(guild: Guild) -> None:
    text = clean(guild("run dask:scheduler --help-op"))
    assert "Run staged runs in parallel on a Dask cluster" in text
    assert re.findall(r"^  ([a-z-]+)  ", text, re.MULTILINE) == sorted(flags.flags())


def test_operations_and_scripts_run(guild: Guild, project: pathlib.Path) -> None:
    # Guild checks whether each file of a project is text; with a current chardet it fails at this one.
    (project / "weights.unknown").write_bytes(b"\x89\x12\xe3\xff\xd0\x00" * 10)
    (project / "click_script.py").write_text(CLICK_SCRIPT)
    assert "Waiting 0 second(s)" in clean(guild("run op sleep=0 -y"))
    assert "stopping" in clean(guild("run sleep2.py seconds=0 -y"))
    # An option without a default: with a current click, Guild passes the text of click's internal marker.
    assert "name is None" in clean(guild("run click_script.py x=3 -y"))
    assert [run[1:] for run in listed(guild)] == [
        ("op", "completed"),
        ("sleep2.py", "completed"),
        ("click_script.py", "completed"),
    ]
    assert clean(guild("cat --output")) == "name is None\nloss: 6\n"


ARGPARSE_SCRIPT = """
import argparse

parser = argparse.ArgumentParser()
parser.add_argument("--x", type=float, default=1.5)
parser.add_argument("--name", choices=["a", "b"], default="a")
parser.add_argument("--fast", action="store_true")
args = parser.parse_args()
print(args.name, args.fast)
print("loss:", args.x * 2)
"""

REQUIRED_SCRIPT = """
import click

@click.command()
@click.option("--rate", required=True, type=float)
def main(rate):
    print("rate is", rate)

if __name__ == "__main__":
    main()
"""

GLOBALS_SCRIPT = """
x = 1
rate = -0.5
name = "a"
print(name, rate)
print("loss:", (x - 3) ** 2 + rate)
"""


def test_flags_are_found_in_scripts(guild: Guild, project: pathlib.Path) -> None:
    (project / "with_argparse.py").write_text(ARGPARSE_SCRIPT)
    (project / "with_click.py").write_text(CLICK_SCRIPT)
    (project / "with_globals.py").write_text(GLOBALS_SCRIPT)
    (project / "with_required.py").write_text(REQUIRED_SCRIPT)
    for script, expected in (
        ("with_argparse.py", {"fast": "no", "name": "a", "x": "1.5"}),
        ("with_click.py", {"x": "1"}),
        ("with_globals.py", {"name": "a", "rate": "-0.5", "x": "1"}),
    ):
        text = clean(guild(f"run {script} --help-op"))
        assert dict(re.findall(r"^  (\w+) .*\(default is (.*)\)$", text, re.MULTILINE)) == expected
    assert "b True" in clean(guild("run with_argparse.py name=b fast=yes -y"))
    assert "name is me" in clean(guild("run with_click.py name=me -y"))
    assert "z 2" in clean(guild("run with_globals.py name=z rate=2 -y"))
    assert "rate is 0.5" in clean(guild("run with_required.py rate=0.5 -y"))
    refused = clean(guild("run with_required.py -y", exit_code=1))
    assert refused.startswith("Operation requires the following missing flags:\n\n  rate")


# Real numbers: an optimizer warns, rightly, when it comes to the same point of a few whole ones again.
SEARCHES = {
    "random": "x=[1:10] rate=loguniform[0.01:1] name=[a,b]",
    "gp": "x=[1:10] rate=uniform[-1.0:1.0]",
    "forest": "x=[1:10] rate=uniform[-1.0:1.0]",
    "gbrt": "x=[1:10] rate=uniform[-1.0:1.0]",
}


@pytest.mark.parametrize("optimizer", SEARCHES)
def test_optimizer_searches_ranges(guild: Guild, project: pathlib.Path, optimizer: str) -> None:
    (project / "search.py").write_text(GLOBALS_SCRIPT)
    # The first three trials are random starts.
    clean(guild(f"run search.py {SEARCHES[optimizer]} --optimizer {optimizer} --max-trials 4 -y"))
    trials = [row for row in compared(guild, "") if row["operation"] == "search.py"]
    assert len(trials) == 4
    assert all(1 <= float(row["x"]) <= 10 and -1 <= float(row["rate"]) <= 1 for row in trials)
    assert all(float(row["loss"]) == pytest.approx((float(row["x"]) - 3) ** 2 + float(row["rate"])) for row in trials)


def test_ranges_and_lists_are_staged_and_scheduled(guild: Guild, project: pathlib.Path) -> None:
    (project / "search.py").write_text(GLOBALS_SCRIPT)
    clean(guild("run search.py x=[1:10] rate=[0,1] --max-trials 2 --stage-trials -y"))
    clean(guild("run search.py x=range[1:2] --stage-trials -y"))
    clean(guild("run search.py x=[1:10] --optimizer random --max-trials 1 --stage-trials -y"))
    assert [run[1:] for run in listed(guild) if run[1] == "search.py"] == [("search.py", "staged")] * 5
    assert "5 run(s) completed, 0 failed" in clean(guild(ONCE))


@pytest.mark.parametrize("optimizer", ["gp", "forest", "gbrt"])
def test_sequential_optimizer_is_staged_as_a_whole(guild: Guild, project: pathlib.Path, optimizer: str) -> None:
    # It chooses a trial by the results of earlier ones, so Guild does not let it stage trials.
    (project / "search.py").write_text(GLOBALS_SCRIPT)
    command = f"run search.py {SEARCHES[optimizer]} --optimizer {optimizer} --max-trials 2 -y"
    refused = clean(guild(f"{command} --stage-trials", exit_code=1))
    assert f"operation 'skopt:{optimizer}' does not support --stage-trials" in refused
    assert listed(guild) == []
    clean(guild(f"{command} --stage"))
    assert "1 run(s) completed, 0 failed" in guild(ONCE).output
    assert [run[2] for run in listed(guild) if run[1] == "search.py"] == ["completed"] * 2


def test_runs_are_labelled_compared_moved_and_merged(guild: Guild, project: pathlib.Path, user: Sandbox) -> None:
    (project / "search.py").write_text(GLOBALS_SCRIPT)
    clean(guild("run search.py x=4 --run-id aaa -y"))
    clean(guild("run search.py x=5 --run-id bbb --label first --tag red -y"))
    clean(guild("label --set best aaa -y"))
    clean(guild("tag --add blue aaa -y"))
    assert "best" in clean(guild("runs --label best"))
    assert "aaa" in clean(guild("runs --tag blue"))
    assert re.search(r"^< *x: 4\n", clean(guild("diff --flags --cmd diff aaa bbb")), re.MULTILINE)
    assert "loss: 0.5" in clean(guild("runs info aaa"))
    assert "print(name, rate)" in clean(guild("cat aaa --sourcecode -p search.py"))
    assert "search.py" in clean(guild("ls aaa --sourcecode"))
    archive = user.root / "archive"
    clean(guild(f"export {archive} aaa bbb -y"))
    clean(guild("runs rm aaa bbb --permanent -y"))
    assert listed(guild) == []
    clean(guild(f"import {archive} -y"))
    assert {run[0] for run in listed(guild)} == {"aaa", "bbb"}
    (project / "search.py").unlink()
    clean(guild("merge aaa --no-summary -y"))
    assert (project / "search.py").read_text() == GLOBALS_SCRIPT
    assert [run["id"] for run in json.loads(clean(guild("api runs")))] == ["bbb", "aaa"]
    assert json.loads(clean(guild("api compare aaa bbb")))


def test_tensorboard_shows_runs(guild: Guild, project: pathlib.Path) -> None:
    (project / "search.py").write_text(GLOBALS_SCRIPT)
    clean(guild("run search.py --run-id aaa -y"))
    port = free_port()
    with guild.started(f"tensorboard --no-open --host 127.0.0.1 --port {port}") as board:
        wait_until(lambda: "TensorBoard" in fetched(f"http://127.0.0.1:{port}/"), describe=board.so_far)
        wait_until(
            lambda: "loss" in fetched(f"http://127.0.0.1:{port}/data/plugin/scalars/tags"), describe=board.so_far
        )
    clean(board.so_far())


def test_staged_run_is_started_and_started_again(guild: Guild, project: pathlib.Path) -> None:
    clean(guild("run op sleep=0 --run-id aaa --stage -y"))
    assert listed(guild) == [("aaa", "op", "staged")]
    assert "Waiting 0 second(s)" in clean(guild("run --start aaa -y"))
    assert "Waiting 0 second(s)" in clean(guild("run --restart aaa -y"))
    assert listed(guild) == [("aaa", "op", "completed")]


def test_steps_run_by_hand_and_through_our_scheduler(guild: Guild, project: pathlib.Path) -> None:
    (project / "guild.yml").write_text(STEPS)
    by_hand = clean(guild("run steps -y"))
    clean(guild("run steps --stage -y"))
    scheduled = clean(guild(ONCE))
    for output in (by_hand, scheduled):
        assert output.index("Waiting 0 second(s)") < output.index("Waiting 0.1 second(s)")
    # guildai's built-in scheduler logs `Initializing Dask cluster`.
    assert "Initializing cluster" in scheduled
    assert "1 run(s) completed, 0 failed" in scheduled
    assert statuses(guild) == {"op": "completed", "steps": "completed", "dask:scheduler": "completed"}
    assert [operation for _, operation, _ in listed(guild)].count("op") == 4


def test_compare_and_view_leave_schedulers_out(guild: Guild, project: pathlib.Path) -> None:
    clean(guild("run op sleep=0 --run-id aaa --stage -y"))
    clean(guild(ONCE))
    assert statuses(guild) == {"op": "completed", "dask:scheduler": "completed"}
    assert [(row["run"], row["sleep"]) for row in compared(guild, "")] == [("aaa", "0")]
    assert {row["operation"] for row in compared(guild, "--include-batch")} == {"op", "dask:scheduler"}
    port = free_port()
    with guild.started(f"view --no-open --host 127.0.0.1 --port {port}") as view:
        page = wait_until(lambda: fetched(f"http://127.0.0.1:{port}/"), describe=view.so_far)
        runs = json.loads(fetched(f"http://127.0.0.1:{port}/runs"))
        table = json.loads(fetched(f"http://127.0.0.1:{port}/compare"))
    assert "Guild View" in page
    assert [(run["id"], run["operation"], run["status"]) for run in runs] == [("aaa", "op", "completed")]
    assert [row[0] for row in table] == ["run", "aaa"]
    clean(view.so_far())


def compared(guild: Guild, options: str) -> list[dict[str, str]]:
    """Returns the rows of `guild compare`."""
    return list(csv.DictReader(clean(guild(f"compare --csv - {options}")).splitlines()))


def fetched(address: str) -> str:
    """Returns the page at an address, or an empty text while there is no answer."""
    try:
        with urllib.request.urlopen(address, timeout=30) as answer:
            text: str = answer.read().decode()
            return text
    except urllib.error.URLError:
        return ""


def test_stop_ends_a_run_and_then_the_scheduler(guild: Guild, project: pathlib.Path) -> None:
    clean(guild(f"run dask:scheduler {NO_DASHBOARD} --background -y"))
    clean(guild("run op sleep=3600 --stage -y"))
    wait_for_status(guild, "op", "running")
    # A run is running before its script has printed anything, and before its output file exists.
    wait_until(lambda: "Waiting 3600 second(s)" in clean(guild("cat --output -Fo op", exit_code=None)))
    clean(guild("stop -Fo op -y"))
    wait_for_status(guild, "op", "terminated")
    assert statuses(guild)["dask:scheduler"] == "running"
    clean(guild("stop -y"))
    wait_for_status(guild, "dask:scheduler", "completed")
    assert statuses(guild)["op"] == "terminated"
    log = clean(guild("cat --output -Fo dask:scheduler"))
    assert "Initializing cluster" in log
    assert log.endswith("Stopping Dask cluster\n")


def wait_for_status(guild: Guild, operation: str, status: str) -> None:
    """Waits for a status, because Guild records a run's end a moment after its process has ended."""
    wait_until(lambda: statuses(guild).get(operation) == status, describe=lambda: guild("runs"))


def test_compare_leaves_out_a_scheduler_that_was_refused(guild: Guild, project: pathlib.Path) -> None:
    guild("run op sleep=0 --run-id aaa -y")
    guild("run dask:scheduler workers=0 -y", exit_code=2)
    assert [row["run"] for row in compared(guild, "")] == ["aaa"]


def test_scalars_of_runs_are_not_the_schedulers(guild: Guild, project: pathlib.Path) -> None:
    (project / "metric.py").write_text("x = 1\nprint('loss: 14')\n")
    guild("run metric.py --run-id aaa --stage -y")
    guild(ONCE)
    guild("runs info aaa")
    scheduler = next(path for path in (pathlib.Path(guild_home()) / "runs").iterdir() if path.name != "aaa")
    assert not list((scheduler / ".guild").glob("events.out*"))


def test_start_of_a_staged_run_does_not_ask_pip_what_is_installed(guild: Guild, project: pathlib.Path) -> None:
    # `guild run` calls pip, which takes longer than everything else that it does; the start of a staged run does not,
    # by hand or by a scheduler. If Guild changes that, guild-dask should cache the list of packages.
    guild("run op sleep=0 --run-id aaa -y")
    for run_id in ("bbb", "ccc"):
        guild(f"run op sleep=0 --run-id {run_id} --stage -y")
    guild("run --start bbb -y")
    guild(ONCE)
    attributes = {name: pathlib.Path(guild_home(), "runs", name, ".guild", "attrs") for name in ("aaa", "bbb", "ccc")}
    assert all((path / "exit_status").read_text() == "0\n" for path in attributes.values())
    assert [name for name, path in attributes.items() if (path / "pip_freeze").exists()] == ["aaa"]
