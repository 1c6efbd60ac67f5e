"""A short form of tests/long/chaos.py, every_step.py and search_chaos.py, for .ci/run."""

import os
import pathlib
import sys
from dataclasses import replace
from typing import Any

import pytest

from tests.long.chaos_support import invariants, people_rules
from tests.long.chaos_support.home import Plan
from tests.long.chaos_support.invariants import Seen
from tests.long.chaos_support.journal import Life, Line, Peak, peak
from tests.long.chaos_support.monkey import Kill
from tests.long.chaos_support.people import Deed
from tests.support.sandbox import PROJECT, run_command

ROUNDS = ("--rounds=3", "--kind", "one", "many", "people", "--runs=16", "--seed=3", "--seconds=10")
STEPS = ("--depth=1", "--part=11/60")
SEARCH = ("--rounds=2", "--trials=10", "--seconds=10", "--seed=3")
DEADLINE = 400.0


@pytest.mark.skipif(sys.platform != "linux", reason="looks at processes in /proc")
def test_no_run_is_lost_or_started_twice_when_processes_die(tmp_path: pathlib.Path) -> None:
    command = [sys.executable, "-m", "tests.long.chaos", *ROUNDS, f"--deadline={DEADLINE}", f"--homes={tmp_path}"]
    # At its deadline it ends its processes itself, for which it gets a little more time.
    finished = run_command(command, os.environ, PROJECT, DEADLINE + 60)
    assert finished.exit_code == 0, finished


@pytest.mark.skipif(sys.platform != "linux", reason="looks at processes in /proc")
def test_no_run_is_lost_or_started_twice_when_a_process_dies_at_a_certain_step(tmp_path: pathlib.Path) -> None:
    # A few of the steps; `python -m tests.long.every_step` tries all of them.
    command = [sys.executable, "-m", "tests.long.every_step", *STEPS, f"--homes={tmp_path}"]
    finished = run_command(command, os.environ, PROJECT, DEADLINE)
    assert finished.exit_code == 0, finished


@pytest.mark.skipif(sys.platform != "linux", reason="looks at processes in /proc")
def test_search_has_its_trials_once_when_processes_die() -> None:
    finished = run_command([sys.executable, "-m", "tests.long.search_chaos", *SEARCH], os.environ, PROJECT, DEADLINE)
    assert finished.exit_code == 0, finished


def test_run_that_was_killed_at_its_first_line_takes_no_room() -> None:
    lives = [
        Life("aaa", [Line("start", "aaa", 1, 0, 1.0)]),
        Life("bbb", [Line("start", "bbb", 2, 0, 2.0), Line("end", "bbb", 2, 0, 3.0)]),
        Life("ccc", [Line("start", "ccc", 3, 0, 2.5), Line("beat", "ccc", 3, 0, 2.6)]),
    ]
    assert peak(lives, dict.fromkeys(("aaa", "bbb", "ccc"), 1.0)) == (2.0, 2.5, ("bbb", "ccc"))


def _seen(lines: list[Line], plan: Plan, status: str, exit_status: int | None, **more: Any) -> Seen:
    none = Peak(0.0, 0.0, ())
    empty: dict[str, Any] = {
        "kills": [],
        "deeds": [],
        "claims": [],
        "left_by_schedulers": [],
        "processes": {},
        "logs": [],
        "warm": [],
    }
    given = {**empty, "outputs_of_orderly": [], "capacity": None, "peaks": (none, none), **more}
    life = Life(plan.run_id, lines)
    return Seen(
        plans=[plan],
        lives={plan.run_id: life},
        statuses={plan.run_id: status},
        exit_statuses={plan.run_id: exit_status},
        **given,
    )


RUN = Plan("aaa", foo=0, seconds=0.1, exit_code=0, has_runaway=False)
ONCE = [Line("start", "aaa", 1, 0, 1.0), Line("end", "aaa", 1, 0, 2.0)]
TWICE = [*ONCE, Line("start", "aaa", 2, 0, 5.0), Line("end", "aaa", 2, 0, 6.0)]
CUT_SHORT = [Line("start", "aaa", 1, 0, 1.0), Line("beat", "aaa", 1, 0, 2.0)]


def _broken(seen: Seen, rules: tuple[invariants.Rule, ...] = people_rules.RULES) -> list[str]:
    return [violation.rule for violation in invariants.violations(seen, rules)]


def test_run_is_started_again_after_it_completed_only_if_somebody_staged_it_again() -> None:
    retried = Deed("retry", "aaa", 3.0, 4.0, 0)
    assert _broken(_seen(TWICE, RUN, "completed", 0, deeds=[retried])) == []
    assert _broken(_seen(TWICE, RUN, "completed", 0)) == ["started after it completed", "started too often"]
    too_late = retried._replace(begun=5.5, ended=5.9)
    assert "started after it completed" in _broken(_seen(TWICE, RUN, "completed", 0, deeds=[too_late]))


def test_end_of_a_run_is_its_own_or_explained() -> None:
    assert _broken(_seen(ONCE, RUN, "completed", 0)) == []
    assert _broken(_seen(ONCE, RUN, "error", 1)) == ["unexplained"]
    assert _broken(_seen(CUT_SHORT, RUN, "completed", 0)) == ["untrue"]
    assert _broken(_seen(CUT_SHORT, RUN, "terminated", -9)) == ["unexplained"]
    assert _broken(_seen(CUT_SHORT, RUN, "terminated", -9, kills=[Kill("starter KILL", 7, "aaa")])) == []
    assert _broken(_seen(CUT_SHORT, RUN, "terminated", -9, deeds=[Deed("stop", "aaa", 1.0, 2.0, 0)])) == []
    assert _broken(_seen(CUT_SHORT, RUN, "terminated", -9, deeds=[Deed("Ctrl-C twice", "", 1.0, 2.0, 0)])) == []
    assert _broken(_seen([], RUN, "staged", None)) == ["lost"]
    assert _broken(_seen([], replace(RUN, never_starts=True), "staged", None)) == []


def test_run_that_was_killed_is_tried_again_unless_somebody_stopped_it() -> None:
    may_retry, killed = replace(RUN, retries=1), [Kill("operation KILL", 1, "aaa")]
    assert _broken(_seen(CUT_SHORT, may_retry, "terminated", -9, kills=killed)) == ["not retried"]
    stopped = [Deed("guild stop", "aaa", 1.0, 2.0, 0)]
    assert _broken(_seen(CUT_SHORT, may_retry, "terminated", -9, kills=killed, deeds=stopped)) == []


def test_shortage_ends_no_run_that_has_not_started_and_no_exit_is_forgotten() -> None:
    rules = invariants.RULES_FOR_SHORTAGES
    assert _broken(_seen([], RUN, "error", 1), rules) == ["burned"]
    assert _broken(_seen([], RUN, "terminated", -15), rules) == []
    assert _broken(_seen(ONCE, RUN, "terminated", -9), rules) == ["untrue status"]
    assert _broken(_seen(ONCE, RUN, "completed", 0), rules) == []
