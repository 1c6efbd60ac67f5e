"""Makes the pictures of the documentation with a real scheduler: `python -m tests.long.pictures docs/images`.

Takes about two minutes, and needs the browser of the tests.
"""

import fcntl
import html
import json
import os
import pathlib
import pty
import re
import select
import shutil
import struct
import subprocess
import sys
import tempfile
import termios
import threading
from typing import Any

from tests.support.browser import browser
from tests.support.sandbox import PROJECT, sandbox, wait_until

GUILD_FILE = """
prepare: {exec: 'python -u work.py prepare 3'}
train:
  exec: 'python -u work.py train ${epochs} ${lr} ${dropout}'
  flags: {lr: 0.1, epochs: 12, batch-size: 64, dropout: 0.1, optimizer: adam}
evaluate: {exec: 'python -u work.py ${data} 4', flags: {data: test}}
"""
WORK = """
import math, random, sys, time
name, steps = sys.argv[1], int(sys.argv[2])
lr, dropout = map(float, sys.argv[3:5]) if len(sys.argv) > 4 else (0.1, 0.1)
noise = random.Random(lr + dropout)
kept = bytearray(int(60e6 + 4e8 * lr))
for step in range(1, steps + 1):
    time.sleep(0.7)
    loss = math.exp(-lr * (1 - dropout) * step) + noise.uniform(0.03, 0.08)
    print(f"step: {step}", f"loss: {loss:.4f}", f"acc: {1 - loss / 2:.4f}", sep="\\n")
if name == "broken":
    sys.exit("ValueError: no such data set: broken")
"""
STAGE = (
    "run prepare --tag dask:mem=4GB --stage -y",
    (
        "run train lr=[0.3,0.1,0.03] dropout=[0.1,0.3] optimizer=[adam,sgd] --label 'first sweep' --stage-trials -y"
        " --tag 'dask:gpu=1 mem=8GB'"
    ),
    "run evaluate data=broken --tag dask:mem=2GB --stage -y",
    "run evaluate data=[dev,test,extra] --tag dask:mem=2GB --label nightly --stage-trials -y",
    "run train lr=0.2 --tag 'dask:gpu=1 mem=8GB' --tag dask-priority:5 --label baseline --stage -y",
    "run train lr=0.5 --tag dask:gpu=4 --label 'large model' --run-id 4f0c6d1e2b3a4958a7b6c5d4e3f20918 --stage -y",
)
SCHEDULER = "guild run dask:scheduler workers=4 'resources=gpu=2 mem=64GB' run-once=yes dashboard-address=0 -y"

_COLOURS = {"31": "#ff7b72", "32": "#7ee787", "33": "#e3b341", "1": "", "2": ""}
_STYLE = """
body { margin: 0; background: #fff } pre { margin: 0; padding: 14px 18px; background: #0d1117; color: #e6edf3;
font: 14px/1.4 "DejaVu Sans Mono", monospace; display: inline-block; border-radius: 8px; white-space: pre }
"""


class Screen:
    """A command in a terminal, and what the terminal shows."""

    def __init__(self, command: str, columns: int) -> None:
        self.pid, self._fd = pty.fork()
        if not self.pid:
            os.execvp("sh", ["sh", "-c", command])
        fcntl.ioctl(self._fd, termios.TIOCSWINSZ, struct.pack("HHHH", 40, columns, 0, 0))
        self.written = ""
        self.is_over = False
        threading.Thread(target=self._read, daemon=True).start()

    def _read(self) -> None:
        while select.select([self._fd], [], [])[0]:
            try:
                data = os.read(self._fd, 10_000)
            except OSError:
                break
            self.written += data.decode(errors="replace")
        os.waitpid(self.pid, 0)
        self.is_over = True

    def lines(self) -> list[str]:
        """Returns the visible lines, with colours."""
        lines = [""]
        for part in re.findall(r"\r\x1b\[K|\r?\n|\r|\x1b\[[0-9;]*m|[^\x1b\r\n]+", self.written):
            if part == "\r\x1b[K":
                lines[-1] = ""
            elif part.endswith("\n"):
                lines.append("")
            elif part != "\r":
                lines[-1] += part
        return lines


def as_html(lines: list[str]) -> str:
    """Returns lines of a terminal as a page."""
    text = html.escape("\n".join(lines))

    def styled(match: "re.Match[str]") -> str:
        codes = match.group(1).split(";")
        if codes in (["0"], [""]):
            return "</span>"
        colours = [_COLOURS[code] for code in codes if _COLOURS.get(code)]
        weight = "font-weight:bold;" if "1" in codes else ""
        dim = "opacity:0.65;" if "2" in codes else ""
        return f'<span style="{weight}{dim}{f"color:{colours[0]}" if colours else ""}">'

    body = re.sub(r"\x1b\[([0-9;]*)m", styled, text)
    return f"<!doctype html><meta charset=utf-8><style>{_STYLE}</style><pre>{body}</pre>"


def shot(opened: Any, lines: list[str], path: pathlib.Path) -> None:
    """Makes a picture of lines of a terminal."""
    with tempfile.NamedTemporaryFile("w", suffix=".html", delete=False) as f:
        f.write(as_html(lines))
    opened.get(f"file://{f.name}")
    opened.find_element("css selector", "pre").screenshot(str(path))
    os.unlink(f.name)


def told(command: str) -> list[str]:
    """Returns a command and its output in a terminal of 80 columns."""
    screen = Screen(command, 80)
    wait_until(lambda: screen.is_over, 300)
    lines = [f"$ {command}", *screen.lines()]
    while not lines[-1]:
        lines.pop()
    return lines


def make(folder: pathlib.Path) -> None:
    """Makes all pictures."""
    folder.mkdir(parents=True, exist_ok=True)
    (pathlib.Path.cwd() / "guild.yml").write_text(GUILD_FILE)
    (pathlib.Path.cwd() / "work.py").write_text(WORK)
    for command in STAGE:
        subprocess.run(f"guild {command}", shell=True, check=True, capture_output=True)
    with browser(1400, 1100) as opened:
        scheduler = Screen(SCHEDULER, 110)
        wait_until(lambda: "[######" in scheduler.lines()[-1], 120, lambda: scheduler.written[-2000:])
        lines = [line for line in scheduler.lines() if "Starting staged" not in line or "4f0c" in line]
        shot(opened, [f"$ {SCHEDULER}", *lines[:7], "...", *lines[-12:]], folder / "progress.png")
        shot(opened, told("guild-dask status"), folder / "status.png")
        status = json.loads(subprocess.check_output(["guild-dask", "status", "--json"]))
        run = status["schedulers"][0]["first"][3]["run"][:8]
        both = [*told(f"guild-dask explain {run}"), "", *told("guild-dask explain 4f0c6d1e")]
        shot(opened, both, folder / "explain.png")
        _page(opened, scheduler, folder / "page.png")
        names = {str(shutil.which("guild")): "~/.venv/bin/guild", os.environ["GUILD_HOME"]: "~/.guild"}
        shot(opened, [_renamed(line, names) for line in told("guild-dask doctor")], folder / "doctor.png")
        wait_until(lambda: scheduler.is_over, 300, lambda: scheduler.written[-2000:])
        _report(opened, folder / "report.png")


def _renamed(line: str, names: dict[str, str]) -> str:
    """Returns a line with paths of a user in place of temporary ones."""
    for path, name in names.items():
        line = line.replace(path, name)
    return line


def _page(opened: Any, scheduler: Screen, path: pathlib.Path) -> None:
    link = re.search(r"http://[\d.:]+/guild\S*", scheduler.written)
    assert link
    opened.get(link.group())
    rows = "return [...document.querySelectorAll('#rows .row')].map((each) => each.textContent)"
    wait_until(
        lambda: len([row for row in opened.execute_script(rows) if "completed" in row and "train" in row]) > 1,
        120,
        lambda: opened.execute_script(rows),
    )
    opened.execute_script("document.querySelector('#rows .row').click()")
    wait_until(lambda: "loss" in opened.find_element("id", "text").text)
    # In the order of the queue, with curves of the runs that run.
    wait_until(lambda: opened.execute_script("return document.querySelectorAll('#rows svg.curve').length") > 3)
    opened.save_screenshot(str(path))


def _report(opened: Any, path: pathlib.Path) -> None:
    (found,) = pathlib.Path(os.environ["GUILD_HOME"], "runs").glob("*/report.html")
    opened.set_window_size(1180, 2100)
    opened.get(f"file://{found}")
    wait_until(lambda: opened.execute_script("return document.querySelectorAll('.bk-Figure').length") > 4)
    opened.execute_script("document.body.style.margin = '0 auto'")
    opened.find_element("css selector", "body").screenshot(str(path))


def main() -> None:
    target = pathlib.Path(sys.argv[1] if len(sys.argv) > 1 else PROJECT / "docs" / "images").resolve()
    root = pathlib.Path(tempfile.mkdtemp())
    try:
        with sandbox(root) as box:
            os.environ.update(box.environ)
            os.chdir(box.folder)
            make(target)
    finally:
        shutil.rmtree(root, ignore_errors=True)


if __name__ == "__main__":
    main()
