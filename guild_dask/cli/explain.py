"""`guild-dask explain`: why a run waits, and what would make it start; or where it ran, and how it ended."""

import math
import time
from typing import Any

import click

from guild_dask.cli import common, predecessors, run_list
from guild_dask.home import control, run_directory, run_info, trials
from guild_dask.home.errors import HomeUnavailable
from guild_dask.home.listing import RunsDirectory
from guild_dask.home.outcome import Cause, End, Ending, cause_for_name, text_for_name, text_for_signal
from guild_dask.home.run_view import RunView
from guild_dask.home.status import Status, end_for
from guild_dask.monitor import explanation, formatting, schedulers
from guild_dask.monitor.explanation import Explanation
from guild_dask.monitor.state import State
from guild_dask.plan.placement import position_for
from guild_dask.plan.resources import MEMORY
from guild_dask.plan.tags import BATCH, Requirements, few_bytes, may_be_ours, obstacle_in, requirements_for_tags


@click.command("explain")
@common.run_argument()
@common.json_option
def command(run: str, as_json: bool) -> None:
    """Show why RUN waits, and what would make it start.

    This works without a scheduler, too. For a run that has started, it shows where it runs, or how it ended.
    """
    found = common.run_for(run)
    requirements = requirements_for_tags(tuple(tag for tag in found.tags if may_be_ours(tag)))
    explained = _explanations(found, requirements) if found.status is Status.STAGED else []
    if as_json:
        common.print_json(_data(found, requirements, explained))
        return
    click.echo("\n".join(common.wrapped(_headline(found))))
    for text, to_type in _texts(found, requirements, explained):
        click.echo("\n".join([*common.wrapped(text), *([f"  {formatting.one_line(to_type)}"] if to_type else [])]))


def _headline(run: RunView) -> str:
    """Returns the run, by its operation and label, and its status, as a sentence."""
    name = formatting.one_line(f"{run.operation} {run.label}".strip())
    return f"Run {run.id} ({name}) {_status(run)}." if name else f"Run {run.id} {_status(run)}."


def _status(run: RunView) -> str:
    """Returns the status of a run as the end of a sentence."""
    facts = _facts(run)
    if run.status is Status.ERROR:
        code = _attribute(run, "exit_status")
        return f"failed with exit code {code}{_attempt(facts)}" if isinstance(code, int) else "failed"
    if end_for(run.status, facts) is End.FAILED:
        return "ended"  # by a signal, which the next sentence names
    return _SENTENCES.get(run.status, f"is {run.status.value}")


_SENTENCES = {Status.COMPLETED: "completed", Status.TERMINATED: "was terminated"}


def _explanations(run: RunView, requirements: Requirements) -> list[Explanation]:
    if run_directory.is_queue(run.dir):
        return [explanation.of_scheduler(run.id)]
    states = [each.state for each in schedulers.known_alive(common.home()) if each.state]
    if not states:
        return [explanation.without_scheduler(requirements.amounts)]
    return [_explanation(run, requirements, state) for state in states]


def _explanation(run: RunView, requirements: Requirements, state: State) -> Explanation:
    if state.filter and not _matches(run, state.filter):
        return explanation.filtered_out(state)
    blocked = explanation.after_impossible(run.id, predecessors.predecessors_of(common.home(), run.id).requests, state)
    return blocked or explanation.with_scheduler(
        run.id, requirements.amounts, state, _position(run, state), time.time()
    )


def _matches(run: RunView, expression: str) -> bool:
    from guild_dask.home.run_filter import BadFilter, Selection

    try:
        return Selection(expression).matches(run.dir)
    except (BadFilter, HomeUnavailable):
        return True  # the scheduler may read what this command cannot, and its version of Guild may accept the filter


def _position(run: RunView, state: State) -> int | None:
    """Returns the run's position in the queue: from the scheduler's state or, further back, from all staged runs."""
    for waiting, position in zip(state.first, state.positions, strict=True):
        if waiting.run == run.id:
            return position
    if state.waiting <= len(state.first):
        return None
    try:
        staged = RunsDirectory(common.runs_dir()).poll().staged
    except HomeUnavailable:
        return None
    in_queue = (each for each in staged if not each.is_queue)
    order = sorted((position_for(each.since, each.requirements.priority), each.id) for each in in_queue)
    return next((position for position, (_, run_id) in enumerate(order, start=1) if run_id == run.id), None)


def _texts(run: RunView, requirements: Requirements, explained: list[Explanation]) -> list[tuple[str, str]]:
    """Returns the sentences to print, each with a command to type, which may be empty."""
    states = [each.state for each in schedulers.known_alive(common.home()) if each.state]
    tag = obstacle_in(requirements, has_devices=any(state.gpus is not None for state in states))
    texts = [(str(part), "") for part in requirements.unreadable if not (tag and run.status is Status.STAGED)]
    memory = (worker.total.get(MEMORY, 0.0) for state in states for worker in state.workers)
    # Without a scheduler, the one to come is taken to count memory in bytes.
    warning = few_bytes(run.tags, requirements, max(memory, default=0.0 if states else math.inf))
    texts += [(warning, "")] if warning else []
    if run.status is Status.STAGED and run_directory.is_batch(run.dir) and not run_directory.is_queue(run.dir):
        texts.append((f"{BATCH}.", ""))
    if run.status is not Status.STAGED:
        return texts + [(text, "") for text in _where(run)]
    # If one of several schedulers can start the run, the others do not matter.
    able = [each for each in explained if each.can_start]
    texts += [(f"{each.why} {each.remedy}".strip(), each.command) for each in able or explained]
    if not schedulers.known_alive(common.home()):
        hold = predecessors.predecessors_of(common.home(), run.id).hold
        if hold:
            texts.append((explanation.held_by_any_scheduler(hold), ""))
        if tag:
            each = explanation.held_for_its_tag(run.id, tag)
            texts.append((f"{each.why} {each.remedy}", each.command))
        if control.is_paused(common.home()):
            texts.append(("Schedulers on this Guild home are paused; 'guild-dask resume' resumes them.", ""))
    return texts


def _where(run: RunView) -> list[str]:
    """Returns where a run that has started runs or ran, and how it ended."""
    # A scheduler's state may be a second old.
    for scheduler in schedulers.known_alive(common.home()) if run.status in (Status.RUNNING, Status.PENDING) else ():
        for running in scheduler.state.running if scheduler.state else ():
            if running.run == run.id:
                ago = formatting.duration(time.time() - running.since)
                return [f"Scheduler {formatting.short(scheduler.id)} runs it on worker {running.worker}, for {ago}."]
    facts = _facts(run)
    if facts.get("worker"):
        who = formatting.short(str(facts.get("scheduler", "")))
        word = "runs" if run.status is Status.RUNNING else "ran"
        where = f"Scheduler {who} {word} it on worker {facts['worker']}, host {facts.get('host')}."
        return [where, *_end(run, facts)]
    if run.status is Status.PENDING:
        return ["A process is starting it, or died while doing so; in that case a scheduler stages it again."]
    return ["No scheduler started it."]


def _end(run: RunView, facts: dict[str, Any]) -> list[str]:
    """Returns how a run ended, and what became of processes that it left behind."""
    if run.status is Status.RUNNING:
        return ["That scheduler has died. The run continues, and the next scheduler counts the resources that it uses."]
    cause, excess = run_info.cause_in(facts)
    if cause:
        ending = Ending(End.TERMINATED.value, None, cause, excess)
        return [_cut_short(run, cause, trials.with_search(ending, run.dir).how)]
    signal_number = facts.get(run_info.KILLED_BY)
    if isinstance(signal_number, int):
        return [f"It failed{_attempt(facts)}: {text_for_signal(-signal_number)} ({_output(run)})."]
    left, excess = run_info.cause_in(facts, run_info.LEFT)
    texts = [f"Processes that it left behind were ended: {text_for_name(left, excess)}."] if left else []
    if run.status is Status.ERROR:
        texts.insert(0, f"{_output(run)}.")
    return texts


def _cut_short(run: RunView, cause: str, why: str) -> str:
    """Returns why a run was ended."""
    if run.status is Status.COMPLETED:
        return f"It got a stop request ({why}) and exited with code 0."
    if cause_for_name(cause) is Cause.SCHEDULER_STOPPED:
        return f"It was ended: {why}. 'guild run --restart {formatting.short(run.id)} --stage' stages it again."
    return f"It was ended: {why}."


def _facts(run: RunView) -> dict[str, Any]:
    """Returns the attribute `dask` of a run; empty if no scheduler started it."""
    found = _attribute(run, run_info.NAME)
    return found if isinstance(found, dict) else {}


def _attempt(facts: dict[str, Any]) -> str:
    return f" in attempt {facts['attempt']}" if facts.get("attempt", 1) != 1 else ""


def _output(run: RunView) -> str:
    return f"'guild cat --output {formatting.short(run.id)}' shows its output"


def _attribute(run: RunView, name: str) -> Any:
    return run_directory.known_attribute(run.dir, name)


def _data(run: RunView, requirements: Requirements, explained: list[Explanation]) -> dict[str, Any]:
    return {
        **run_list.details(common.home(), run.id),
        "run": run.id,
        "status": run.status.value,
        "operation": run.operation,
        "label": run.label,
        "requests": {name: float(amount) for name, amount in requirements.amounts.items()},
        "unreadable": [str(part) for part in requirements.unreadable],
        "explanations": [
            {
                "why": each.why,
                "remedy": each.remedy,
                "command": each.command,
                "can_start": each.can_start,
                "position": each.position,
                "starts_in": each.starts_in,
            }
            for each in explained
        ],
        "texts": [
            _headline(run),
            *(f"{text} {to_type}".strip() for text, to_type in _texts(run, requirements, explained)),
        ],
    }
