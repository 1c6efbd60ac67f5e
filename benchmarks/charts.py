"""Charts as SVG text, which every browser shows."""

import itertools
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from statistics import median
from xml.sax.saxutils import escape

WIDTH = 820
LEFT, RIGHT, TOP, ROW = 270, 90, 56, 44
COLOURS = ("#5b6770", "#7a9e3a", "#c8553d", "#8a5a9e", "#d9a441", "#3aa6a0")
ACCENT = "#0b6e99"
INK, FAINT = "#24292f", "#d5dae0"


@dataclass(frozen=True)
class Texts:
    """The texts above and below a picture, and the name to highlight."""

    title: str
    note: str
    accent: str


@dataclass
class Drawing:
    """An SVG picture that is drawn element by element."""

    title: str
    note: str
    height: float
    elements: list[str] = field(default_factory=list)

    def line(self, start: tuple[float, float], end: tuple[float, float], colour: str = FAINT, width: float = 1) -> None:
        position = f'x1="{start[0]:.1f}" y1="{start[1]:.1f}" x2="{end[0]:.1f}" y2="{end[1]:.1f}"'
        self.elements.append(f'<line {position} stroke="{colour}" stroke-width="{width}"/>')

    def dot(self, at: tuple[float, float], colour: str, radius: float = 4, opacity: float = 0.55) -> None:
        position = f'cx="{at[0]:.1f}" cy="{at[1]:.1f}" r="{radius}"'
        self.elements.append(f'<circle {position} fill="{colour}" fill-opacity="{opacity}"/>')

    def bar(self, corner: tuple[float, float], size: tuple[float, float], colour: str) -> None:
        position = f'x="{corner[0]:.1f}" y="{corner[1]:.1f}" width="{size[0]:.1f}" height="{size[1]:.1f}"'
        self.elements.append(f'<rect {position} rx="2" fill="{colour}"/>')

    def text(self, at: tuple[float, float], text: str, anchor: str = "start", colour: str = INK) -> None:
        position = f'x="{at[0]:.1f}" y="{at[1]:.1f}" text-anchor="{anchor}" fill="{colour}"'
        self.elements.append(f"<text {position}>{escape(text)}</text>")

    def svg(self) -> str:
        """Returns the whole picture."""
        head = f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {self.height:.0f}" width="{WIDTH}"'
        style = 'font-family="system-ui, sans-serif" font-size="13"'
        title = f'<text x="16" y="26" font-size="16" font-weight="600" fill="{INK}">{escape(self.title)}</text>'
        note = f'<text x="16" y="{self.height - 12:.0f}" fill="#5b6770" font-size="12">{escape(self.note)}</text>'
        paper = f'<rect width="{WIDTH}" height="{self.height:.0f}" fill="#ffffff"/>'
        return "\n".join((f"{head} {style}>", paper, title, *self.elements, note, "</svg>", ""))


@dataclass(frozen=True)
class LogScale:
    """Positions on a logarithmic axis, from the power of ten below the least value to that above the greatest."""

    low: int
    high: int
    start: float
    end: float

    def place(self, value: float) -> float:
        share = (math.log10(value) - self.low) / (self.high - self.low)
        return self.start + share * (self.end - self.start)

    def ticks(self) -> list[float]:
        return [10.0**power for power in range(self.low, self.high + 1)]


def colours_for(names: Iterable[str], accent: str) -> dict[str, str]:
    """Returns a colour for each name; the highlighted one has the same colour in every picture."""
    others = iter(COLOURS)
    return {name: ACCENT if name == accent else next(others) for name in names}


def log_scale(values: Sequence[float], start: float, end: float) -> LogScale:
    """Returns a scale that contains all values, which are above zero."""
    low = math.floor(math.log10(min(values)))
    return LogScale(low, max(low + 1, math.ceil(math.log10(max(values)))), start, end)


def bars(texts: Texts, values: Mapping[str, float], limit: tuple[str, float]) -> str:
    """Returns a horizontal bar for each value, and a line across them at the limit."""
    bottom = TOP + ROW * len(values) + 16
    colours = colours_for(values, texts.accent)
    drawing = Drawing(texts.title, texts.note, bottom + 52)
    scale = (WIDTH - LEFT - RIGHT) / max(*values.values(), limit[1])
    for number, (name, value) in enumerate(values.items()):
        y = TOP + ROW * number
        drawing.text((LEFT - 12, y + 24), name, "end")
        drawing.bar((LEFT, y + 6), (value * scale, ROW - 16), colours[name])
        drawing.text((LEFT + value * scale + 8, y + 24), f"{value:.1f} s")
    x = LEFT + limit[1] * scale
    drawing.line((x, TOP - 6), (x, bottom - 6), INK, 1.5)
    drawing.text((x, bottom + 10), f"{limit[0]}: {limit[1]:.1f} s", "middle")
    return drawing.svg()


def stacks(texts: Texts, rows: Mapping[str, Mapping[str, float]]) -> str:
    """Returns a horizontal bar for each row, made of its parts in seconds, and a key with the parts' names."""
    names = list(next(iter(rows.values())))
    bottom = TOP + ROW * len(rows) + 8
    drawing = Drawing(texts.title, texts.note, bottom + 24 * len(names) + 40)
    scale = (WIDTH - LEFT - RIGHT) / max(sum(parts.values()) for parts in rows.values())
    for number, (row, parts) in enumerate(rows.items()):
        y, x = TOP + ROW * number, float(LEFT)
        drawing.text((LEFT - 12, y + 24), row, "end", ACCENT if row == texts.accent else INK)
        for name, colour in zip(names, COLOURS, strict=False):
            drawing.bar((x, y + 6), (parts[name] * scale, ROW - 16), colour)
            x += parts[name] * scale
        drawing.text((x + 8, y + 24), f"{1000 * sum(parts.values()):.0f} ms")
    for number, (name, colour) in enumerate(zip(names, COLOURS, strict=False)):
        y = bottom + 24 * number
        drawing.bar((LEFT, y + 2), (14, 14), colour)
        times = ", ".join(f"{row} {1000 * parts[name]:.0f}" for row, parts in rows.items())
        drawing.text((LEFT + 22, y + 14), f"{name} ({times})")
    return drawing.svg()


def strips(texts: Texts, samples: Mapping[str, Sequence[float]]) -> str:
    """Returns a row of dots for each set of samples in seconds, with their median, on a logarithmic axis."""
    bottom = TOP + ROW * len(samples)
    colours = colours_for(samples, texts.accent)
    drawing = Drawing(texts.title, texts.note, bottom + 58)
    scale = log_scale([value for row in samples.values() for value in row], LEFT, WIDTH - RIGHT)
    for tick in scale.ticks():
        drawing.line((scale.place(tick), TOP), (scale.place(tick), bottom))
        drawing.text((scale.place(tick), bottom + 18), f"{tick:g} s", "middle")
    for number, (name, row) in enumerate(samples.items()):
        y = TOP + ROW * number + ROW / 2
        drawing.text((LEFT - 12, y + 5), name, "end")
        for position, value in enumerate(row):
            drawing.dot((scale.place(value), y + 4 * (position % 3 - 1)), colours[name])
        middle = scale.place(median(row))
        drawing.line((middle, y - 14), (middle, y + 14), INK, 2)
        drawing.text((WIDTH - RIGHT + 12, y + 5), f"{median(row):.3g} s")
    return drawing.svg()


def lines(texts: Texts, steps: Sequence[str], series: Mapping[str, Sequence[float | None]]) -> str:
    """Returns a line for each series over the named steps, on a logarithmic axis; None is a missing value."""
    bottom, left, right = 380.0, 70, WIDTH - 280
    colours = colours_for(series, texts.accent)
    drawing = Drawing(texts.title, texts.note, bottom + 62)
    scale = log_scale([value for row in series.values() for value in row if value], bottom, TOP)
    places = [left + 20 + number * (right - left - 40) / max(1, len(steps) - 1) for number in range(len(steps))]
    for tick in scale.ticks():
        drawing.line((left, scale.place(tick)), (right, scale.place(tick)))
        drawing.text((left - 8, scale.place(tick) + 4), f"{tick:g} s", "end")
    for x, step in zip(places, steps, strict=True):
        drawing.text((x, bottom + 20), step, "middle")
    for name, row in series.items():
        points = [(x, scale.place(value)) for x, value in zip(places, row, strict=True) if value]
        for start, end in itertools.pairwise(points):
            drawing.line(start, end, colours[name], 2)
        for point in points:
            drawing.dot(point, colours[name], 5, 1)
    for number, name in enumerate(series):
        drawing.dot((right + 20, TOP + 10 + 24 * number), colours[name], 5, 1)
        drawing.text((right + 32, TOP + 14 + 24 * number), name)
    return drawing.svg()
