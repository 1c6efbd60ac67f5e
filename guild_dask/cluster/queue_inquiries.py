"""Which jobs of a job queue are over, or will never start, by what its own command prints.

A job counts as not over if the answer does not mention it, for example because the queue is being restarted.
"""

import contextlib
import re
import shutil
import subprocess
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

# Seconds for a queue to answer. The next check asks again.
_ANSWER = 30.0


@dataclass(frozen=True)
class Answer:
    """The exit code and output of a queue's command."""

    exit_code: int
    printed: str = ""
    complaint: str = ""


@dataclass(frozen=True)
class Inquiry:
    """A command that is asked about jobs, and how its answer is read."""

    command: tuple[str, ...]
    over: Callable[[Sequence[str], Answer], set[str]]  # the jobs that are over
    held: Callable[[Sequence[str], Answer], Mapping[str, str]] = lambda _jobs, _answer: {}  # why the queue holds jobs
    after: tuple[str, ...] = ()  # behind the jobs
    comma: bool = False  # between the jobs, as one word
    is_for_one: bool = False  # one call for each job


def _not_listed(jobs: Sequence[str], answer: Answer) -> set[str]:
    """Returns the jobs that are missing in the first column of a complete list."""
    if answer.exit_code != 0:
        return set()
    listed = {line.split()[0] for line in answer.printed.splitlines() if line.split()}
    return {job for job in jobs if job not in listed}


def _over_in_slurm(jobs: Sequence[str], answer: Answer) -> set[str]:
    # Slurm leaves unknown jobs out of the list, and fails only if it knows none of them.
    if answer.exit_code != 0 and "invalid job id" in answer.complaint.lower():
        return set(jobs)
    return _not_listed(jobs, answer)


def _over_in_sge(jobs: Sequence[str], answer: Answer) -> set[str]:
    # The answer is about one job only.
    is_unknown = "do not exist" in (answer.complaint + answer.printed).lower()
    return set(jobs) if answer.exit_code != 0 and is_unknown else set()


def _complained_of(*phrases: str) -> Callable[[Sequence[str], Answer], set[str]]:
    """Returns a function that finds the jobs named in a line with one of the phrases."""

    def over(jobs: Sequence[str], answer: Answer) -> set[str]:
        lines = [line.lower() for line in (answer.complaint + "\n" + answer.printed).splitlines()]
        matching = [line for line in lines if any(phrase in line for phrase in phrases)]
        return {job for job in jobs if any(_names(line, job) for line in matching)}

    return over


def _names(line: str, job: str) -> bool:
    return re.search(rf"(?<![\w.]){re.escape(job.lower())}(?!\w)", line) is not None


def _over_in_lsf(jobs: Sequence[str], answer: Answer) -> set[str]:
    ended = {words[0] for words in _rows(answer) if len(words) > 1 and words[1] in ("DONE", "EXIT", "ZOMBI")}
    return {job for job in jobs if job in ended} | _complained_of("is not found")(jobs, answer)


def _over_in_condor(jobs: Sequence[str], answer: Answer) -> set[str]:
    removed_or_completed = {words[0] for words in _rows(answer) if len(words) > 1 and words[1] in ("3", "4")}
    return {job for job in jobs if job in removed_or_completed} | _not_listed(jobs, answer)


def _held_in_condor(jobs: Sequence[str], answer: Answer) -> dict[str, str]:
    # HTCondor holds a job that it cannot start, until a user releases it. Code 1: a user held it (condor_hold).
    rows = [line.split(maxsplit=3) for line in answer.printed.splitlines()]
    held = {row[0]: row[3] for row in rows if len(row) == 4 and row[1] == "5" and row[2] != "1"}
    return {job: held[job] for job in jobs if job in held}


def _over_in_oar(jobs: Sequence[str], answer: Answer) -> set[str]:
    ended = {words[0].rstrip(":") for words in _rows(answer) if len(words) > 1 and words[1] in ("Terminated", "Error")}
    return {job for job in jobs if job in ended}


def _over_in_moab(jobs: Sequence[str], answer: Answer) -> set[str]:
    state = re.search(r"^State:\s*(\w+)", answer.printed, re.MULTILINE)
    if state and state[1] in ("Completed", "Removed", "Vacated"):
        return set(jobs)
    return set(jobs) if "invalid job specified" in (answer.complaint + answer.printed).lower() else set()


def _rows(answer: Answer) -> list[list[str]]:
    return [line.split() for line in answer.printed.splitlines()]


INQUIRIES: Mapping[str, Inquiry] = {
    "slurm": Inquiry(("squeue", "-h", "-o", "%A", "-j"), _over_in_slurm, comma=True),
    "sge": Inquiry(("qstat", "-j"), _over_in_sge, is_for_one=True),
    "pbs": Inquiry(("qstat",), _complained_of("unknown job id", "has finished")),
    "lsf": Inquiry(("bjobs", "-noheader", "-o", "jobid stat"), _over_in_lsf),
    "oar": Inquiry(("oarstat", "-s", "-j"), _over_in_oar, is_for_one=True),
    "moab": Inquiry(("checkjob",), _over_in_moab, is_for_one=True),
    "htcondor": Inquiry(
        ("condor_q",), _over_in_condor, _held_in_condor, after=("-af:j", "JobStatus", "HoldReasonCode", "HoldReason")
    ),
}


def jobs_over(queue: str, jobs: Sequence[str]) -> dict[str, str]:
    """Returns the jobs that are over, unknown to the queue, or held by it, with its reason if they are held."""
    inquiry = INQUIRIES[queue]
    over: dict[str, str] = {}
    if not shutil.which(inquiry.command[0]):
        return over
    groups = [[job] for job in jobs] if inquiry.is_for_one else [list(jobs)]
    with contextlib.suppress(OSError, subprocess.SubprocessError):
        for group in groups:
            named = [",".join(group)] if inquiry.comma else group
            command = [*inquiry.command, *named, *inquiry.after]
            asked = subprocess.run(
                command, capture_output=True, text=True, errors="replace", check=False, timeout=_ANSWER
            )
            answer = Answer(asked.returncode, asked.stdout, asked.stderr)
            over |= dict.fromkeys(inquiry.over(group, answer), "") | dict(inquiry.held(group, answer))
    return over
