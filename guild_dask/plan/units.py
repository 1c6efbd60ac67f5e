"""All text for amounts, sizes and times, and back: `8GB`, `1h30m`, and walltimes as each job queue reads them.

Everything here is total: text that cannot be read never raises, and is returned as None.
"""

import math
import re

# Amounts and sizes

ACCEPTED_AMOUNTS = "a number of at least 0 such as 4, 2.5 or 5e9, or a size such as 8GB or 16GiB"

_AMOUNT = re.compile(r"\+?((?:\d+(?:\.\d*)?|\.\d+)(?:e[+-]?\d+)?)\s*([a-z]*)", re.IGNORECASE | re.ASCII)
_UNIT = re.compile(r"[a-z]+$", re.IGNORECASE | re.ASCII)

# The units that Dask's parse_bytes reads: kB, KiB, k and Ki alike for each power, in any case.
_FACTORS = {"": 1, "b": 1}
for _power, _letter in enumerate("kmgtp", start=1):
    _FACTORS.update({_letter: 10 ** (3 * _power), f"{_letter}b": 10 ** (3 * _power)})
    _FACTORS.update({f"{_letter}i": 2 ** (10 * _power), f"{_letter}ib": 2 ** (10 * _power)})


class Amount(float):
    """An amount that is shown as it was typed: `8GB` rather than 8000000000."""

    text: str

    def __new__(cls, value: float, text: str) -> "Amount":
        amount = super().__new__(cls, value)
        amount.text = text
        return amount

    def __getnewargs__(self) -> tuple[float, str]:  # type: ignore[override]  # a float has one argument, we have two
        return float(self), self.text


def amount_for_text(text: str) -> Amount | None:
    """Returns the finite amount of at least zero that the text stands for, or None."""
    match = _AMOUNT.fullmatch(text.strip())
    if not match:
        return None
    number, unit = match.groups()
    factor = _FACTORS.get(unit.lower())
    if factor is None:
        return None
    value = float(number) * factor
    return Amount(value, text.strip()) if math.isfinite(value) else None


def unit_of(amount: float) -> tuple[int, str]:
    """Returns the factor and the name of the unit that an amount was typed in; 1 and "" if it has no unit."""
    match = _UNIT.search(amount.text) if isinstance(amount, Amount) else None
    return (_FACTORS.get(match[0].lower(), 1), match[0]) if match else (1, "")


def format_amount(amount: float) -> str:
    """Returns the amount as it was typed, or else in the shortest exact form."""
    if isinstance(amount, Amount):
        return amount.text
    return str(int(amount)) if float(amount).is_integer() and abs(amount) < 1e15 else repr(float(amount))


def format_size(amount: float) -> str:
    """Returns a number of bytes as it was typed with a unit, or else with three digits and a unit: `1.5GB`."""
    if isinstance(amount, Amount) and unit_of(amount)[1]:
        return amount.text
    for power, letter in reversed(list(enumerate("kMGTP", start=1))):
        if amount >= 10 ** (3 * power):
            count = amount / 10 ** (3 * power)
            return f"{count:.3g}{letter}B" if count < 100 else f"{count:.0f}{letter}B"
    return f"{amount:.0f}B"


# Times

ACCEPTED_DURATIONS = "a time such as 90m, 1h30m, 2d, 45s or 1:30:00; a number alone is seconds"

_LONGEST = 1e9  # seconds, some thirty years

_SECONDS_IN = {"d": 86400, "h": 3600, "m": 60, "s": 1}
_NAMES = ("d(?:ays?)?", "h(?:ours?)?", "m(?:in(?:ute)?s?)?", "s(?:ec(?:ond)?s?)?")
_DURATION = re.compile("".join(rf"(?:(\d+(?:\.\d+)?)\s*{name}\s*)?" for name in _NAMES), re.ASCII | re.IGNORECASE)
_CLOCK = re.compile(r"(\d+):([0-5]\d):([0-5]\d)", re.ASCII)
_SECONDS = re.compile(r"\d+(?:\.\d+)?", re.ASCII)

# Days, a time with up to four parts, and the host that LSF accepts after a slash.
_WALLTIME = re.compile(r"(?:(\d{1,9})-)?(\d{1,9}(?::\d{1,9}){0,3})(?:/.*)?", re.ASCII)
_FROM_DAYS = (86400.0, 3600.0, 60.0, 1.0)


def duration_for_text(text: str) -> float | None:
    """Returns the seconds of a text such as 90m, 1h30m or 1:30:00, or None if it is not a time above zero."""
    text = text.strip()
    clock, parts = _CLOCK.fullmatch(text), _DURATION.fullmatch(text)
    if _SECONDS.fullmatch(text):
        seconds = float(text)
    elif clock:
        hours, minutes, rest = clock.groups()
        seconds = float(hours) * 3600 + float(minutes) * 60 + float(rest)
    elif parts:
        numbers = zip(parts.groups(), _SECONDS_IN.values(), strict=True)
        seconds = sum(float(number or 0) * unit for number, unit in numbers)
    else:
        return None
    return seconds if 0 < seconds <= _LONGEST else None


def format_duration(seconds: float) -> str:
    """Returns the time in the form that duration_for_text() reads: 1h30m."""
    text, rest = "", seconds
    for unit, length in _SECONDS_IN.items():
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
        # duration_for_text() reads plain numbers and times with colons as well, but not as the queue reads them.
        return duration_for_text(text) if any(character.isalpha() for character in text) else None
    parts = match[2].split(":")
    units = _units(queue, len(parts), has_days=match[1] is not None)
    if len(units) != len(parts):
        return None
    days = int(match[1] or 0) * 86400.0
    return days + sum(int(part) * unit for part, unit in zip(parts, units, strict=True))


def _units(queue: str, count: int, has_days: bool) -> tuple[float, ...]:
    """Returns the seconds of each part of a time with so many parts; fewer if the queue accepts fewer parts."""
    if queue == "oar" or has_days:
        return _FROM_DAYS[1:][:count]  # the first part is hours, however many follow
    if queue == "lsf" or (queue == "slurm" and count == 1):
        return _FROM_DAYS[1:3][-count:]  # the last part is minutes
    return _FROM_DAYS[-count:]  # the last part is seconds
