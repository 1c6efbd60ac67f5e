"""Text for times to seconds and back: durations as users write them, and walltimes as each job queue reads them.

Everything here is total: text that cannot be read never raises, and is returned as None.
"""

import re

ACCEPTED_DURATIONS = "a time such as 90m, 1h30m, 2d, 45s or 1:30:00; a number alone is seconds"

_LONGEST = 1e9  # seconds, some thirty years

_UNITS = {"d": 86400, "h": 3600, "m": 60, "s": 1}
_NAMES = ("d(?:ays?)?", "h(?:ours?)?", "m(?:in(?:ute)?s?)?", "s(?:ec(?:ond)?s?)?")
_DURATION = re.compile("".join(rf"(?:(\d+(?:\.\d+)?)\s*{name}\s*)?" for name in _NAMES), re.ASCII | re.IGNORECASE)
_CLOCK = re.compile(r"(\d+):([0-5]\d):([0-5]\d)", re.ASCII)
_SECONDS = re.compile(r"\d+(?:\.\d+)?", re.ASCII)

# Days, a time with up to four parts, and the host that LSF takes behind a slash.
_WALLTIME = re.compile(r"(?:(\d{1,9})-)?(\d{1,9}(?::\d{1,9}){0,3})(?:/.*)?", re.ASCII)
_FROM_DAYS = (86400.0, 3600.0, 60.0, 1.0)


def duration_for_text(text: str) -> float | None:
    """Returns the seconds of a text such as 90m, 1h30m or 1:30:00, or None if it is no time above zero."""
    text = text.strip()
    clock, parts = _CLOCK.fullmatch(text), _DURATION.fullmatch(text)
    if _SECONDS.fullmatch(text):
        seconds = float(text)
    elif clock:
        hours, minutes, rest = clock.groups()
        seconds = float(hours) * 3600 + float(minutes) * 60 + float(rest)
    elif parts:
        seconds = sum(float(number or 0) * unit for number, unit in zip(parts.groups(), _UNITS.values(), strict=True))
    else:
        return None
    return seconds if 0 < seconds <= _LONGEST else None


def format_duration(seconds: float) -> str:
    """Returns the time in the form that duration_for_text() reads: 1h30m."""
    text, rest = "", seconds
    for unit, length in _UNITS.items():
        if unit == "s":
            return f"{text}{rest:g}s" if rest or not text else text
        count, rest = divmod(rest, length)
        text += f"{count:.0f}{unit}" if count else ""
    return text


def seconds_for_walltime(queue: str, text: str) -> float | None:
    """Returns the seconds of a walltime as the job queue reads it, or None if it cannot be read.

    `1:30` is 90 minutes for LSF and 90 seconds for Slurm; `30` is 30 minutes for both, and 30 seconds for PBS.
    """
    match = _WALLTIME.fullmatch(text.strip())
    if not match:
        # A number without a unit, and a time with colons, have been read above as the queue reads them.
        return duration_for_text(text) if any(character.isalpha() for character in text) else None
    parts = match[2].split(":")
    units = _units(queue, len(parts), has_days=match[1] is not None)
    if len(units) != len(parts):
        return None
    days = int(match[1] or 0) * 86400.0
    return days + sum(int(part) * unit for part, unit in zip(parts, units, strict=True))


def _units(queue: str, count: int, has_days: bool) -> tuple[float, ...]:
    """Returns the seconds of each part of a time with so many parts; fewer if the queue does not take so many."""
    if queue == "oar" or has_days:
        return _FROM_DAYS[1:][:count]  # the first part is hours, however many follow
    if queue == "lsf" or (queue == "slurm" and count == 1):
        return _FROM_DAYS[1:3][-count:]  # the last part is minutes
    return _FROM_DAYS[-count:]  # the last part is seconds
