"""The report as text: sentences and rows of tables."""

from guild_dask.home.outcome import text_for_end
from guild_dask.home.run_info import CPU, MEMORY
from guild_dask.monitor import formatting
from guild_dask.monitor.report.history import RUNNING, SLOTS, History, Span, WarmStarts, median
from guild_dask.plan.reasons import AnyReason
from guild_dask.plan.resources import format_amounts
from guild_dask.plan.units import format_size

OPERATION_COLUMNS = ("operation", "runs", "took", "waited", "CPUs used", "most memory", "requested")


def headline(history: History) -> str:
    """Returns how long the scheduler worked, and how its runs ended."""
    word = "worked" if history.is_over else "has worked"
    killed = ", and was killed or lost with its host" if history.is_killed else ""
    return f"The scheduler {word} for {formatting.duration(history.worked)}{killed}: {ends(history)}."


def ends(history: History) -> str:
    """Returns how many runs ended how."""
    return ", ".join(f"{count} {text_for_end(end)}" for end, count in sorted(history.ends.items())) or "no run"


def waiting(history: History) -> str:
    """Returns how long runs waited."""
    if not history.waits:
        return "No run has started."
    usual, longest = formatting.duration(median(history.waits)), formatting.duration(max(history.waits))
    return f"Runs waited {usual} (median), {longest} at most."


def uses(history: History) -> list[str]:
    """Returns the mean use of the slots and of each resource."""
    names = {SLOTS: "slots"}
    return [f"{names.get(use.name, use.name)}: {100 * use.mean_share:.0f} % used" for use in history.uses]


def warm_starts(history: History) -> list[str]:
    """Returns what warm starts saved, for each operation that has any."""
    return [_warm_starts(name or "-", starts) for name, starts in sorted(history.warm_starts().items())]


def _warm_starts(operation: str, starts: WarmStarts) -> str:
    each, fresh = formatting.exact_duration(starts.each), formatting.exact_duration(starts.fresh)
    saved = formatting.exact_duration(starts.saved)
    warm = f"{starts.count} of {starts.of} started warm"
    text = f"{operation}: {warm}, in {each} instead of {fresh} (medians): {saved} saved"
    if not starts.preload:
        return text
    return f"{text}, and up to {formatting.exact_duration(starts.preload)} by preloaded modules where runs import them"


def operations(history: History) -> list[tuple[str, ...]]:
    """Returns a row for each operation: the number of runs, and the medians of what they took."""
    found = sorted(history.operations().items())
    return [(name or "-", str(len({span.run.run for span in spans})), *_row(spans)) for name, spans in found]


def why_left(why: AnyReason | None) -> str:
    """Returns why a run was left staged."""
    return str(why or "was waiting")


def _row(spans: list[Span]) -> tuple[str, ...]:
    over = [span for span in spans if span.run.end != RUNNING]
    cpus = [span.run.used[CPU] / span.run.ran for span in over if CPU in span.run.used and span.run.ran > 0]
    memory = [span.run.used[MEMORY] for span in over if MEMORY in span.run.used]
    asked = sorted({format_amounts(span.run.requests) for span in spans})
    return (
        formatting.duration(median([span.run.ran for span in over])) if over else "-",
        formatting.duration(median([span.run.waited for span in spans])),
        f"{median(cpus):.2g}" if cpus else "-",
        format_size(max(memory)) if memory else "-",
        "; ".join(text for text in asked if text) or "-",
    )
