"""Documents as tests: Markdown files with commands and their expected output, checked by doctest.

In a document, `...` stands for any text, which can have several lines, and white space is folded. On a line of its own,
it stands for any number of lines, or none. The examples run in order, in one namespace, with these functions:

- run(cmd): runs a shell command, and prints its standard output and error together and then `<exit N>`
- quiet(cmd): runs a shell command, and prints nothing unless it fails
- wait_for(cmd, contains=..., lacks=..., times=...): runs a shell command until its output matches, and prints nothing;
  after a deadline it prints the last output. Instead of a command it takes a function, which must become true
- cd(dir): changes the current folder
- project(guild_file): makes a project with that Guild file, and changes to its folder
- example(name): the path of `examples/NAME` of this project
- sleep(s): waits for a fixed time; use wait_for instead

Each document has a user of its own: see sandbox.Sandbox. A document ends at its first mismatch.
"""

import doctest
import os
import pathlib
import re
import sys
import tempfile
import textwrap
import time
import traceback
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import pytest

from tests.support.sandbox import DEADLINE, EXAMPLES, LONGEST_COMMAND, PROJECT, Finished, Sandbox, run_command, sandbox

_FLAGS = doctest.ELLIPSIS | doctest.NORMALIZE_WHITESPACE
_FRONT_MATTER = re.compile(r"\A---\n.*?^---\n", re.DOTALL | re.MULTILINE)
_DOTS_ALONE = re.compile(r"^[ \t]*\.\.\.[ \t]*\n", re.MULTILINE)
_LOOK = 0.2


class _LenientChecker(doctest.OutputChecker):
    """Lets dots on a line of their own match no line, too. For doctest, they match one line or more."""

    def check_output(self, want: str, got: str, optionflags: int) -> bool:
        return super().check_output(_DOTS_ALONE.sub("...", want), got, optionflags)


LENIENT = _LenientChecker()
AS_DOCTEST = doctest.OutputChecker()


class DocumentFailure(Exception):
    """The output of a command differs; the text has its location, the expected and the actual output."""


class Document(pytest.File):
    """A Markdown file in the folder of the tests."""

    def collect(self) -> Iterator["DocumentItem"]:
        item = DocumentItem.from_parent(self, name=self.path.stem)
        item.add_marker("document")
        yield item


class DocumentItem(pytest.Item):
    """The test of one document."""

    def runtest(self) -> None:
        check_in_new_home(self.path)

    def repr_failure(self, excinfo: pytest.ExceptionInfo[BaseException], style: Any = None) -> Any:
        if isinstance(excinfo.value, (DocumentFailure, AssertionError)):
            return str(excinfo.value)  # a traceback would only show this module
        return super().repr_failure(excinfo, style)

    def reportinfo(self) -> tuple[pathlib.Path, int, str]:
        return self.path, 0, f"document {self.path.name}"


def check_in_new_home(path: pathlib.Path, checker: doctest.OutputChecker = LENIENT, **variables: str) -> None:
    """Checks a document in a new sandbox with these environment variables."""
    with (
        tempfile.TemporaryDirectory(prefix="guild-dask-", ignore_cleanup_errors=True) as folder,
        sandbox(pathlib.Path(folder).resolve(), variables) as box,
    ):
        check(path, box, checker)


def check(path: pathlib.Path, box: Sandbox, checker: doctest.OutputChecker = LENIENT) -> None:
    """Runs a document's examples, and raises DocumentFailure at the first mismatch."""
    text = _without_front_matter(path.read_text(encoding="utf-8"))
    test = doctest.DocTestParser().get_doctest(text, _namespace(box), path.name, str(path), 0)
    if not test.examples:
        raise DocumentFailure(f"{path}: there is no example in it")
    try:
        doctest.DebugRunner(checker, verbose=False, optionflags=_FLAGS).run(test)
    except doctest.DocTestFailure as failure:
        raise DocumentFailure(_report(failure.test, failure.example, failure.got, checker)) from None
    except doctest.UnexpectedException as failure:
        problem = "".join(traceback.format_exception(*failure.exc_info))
        raise DocumentFailure(_report(failure.test, failure.example, problem, checker)) from None


def _without_front_matter(text: str) -> str:
    """Returns the text with empty lines in place of its front matter, so that line numbers do not change."""
    return _FRONT_MATTER.sub(lambda found: "\n" * found.group().count("\n"), text)


def _report(test: doctest.DocTest, example: doctest.Example, got: str, checker: doctest.OutputChecker) -> str:
    parts = {
        "": _with_prompts(example.source),
        "Expected:": example.want or "(nothing)",
        "Got:": got or "(nothing)",
        "The first expected line that is not there:": _first_mismatch(example.want, got, checker),
    }
    blocks = [f"{title}\n{textwrap.indent(text.rstrip(), '    ')}" for title, text in parts.items() if text]
    return f"{test.filename}:{example.lineno + 1}" + "\n".join(blocks)


def _with_prompts(source: str) -> str:
    first, *rest = source.splitlines()
    return "\n".join([f">>> {first}", *(f"... {line}" for line in rest)])


def _first_mismatch(want: str, got: str, checker: doctest.OutputChecker) -> str:
    """Returns the first line of `want` up to which `want` no longer matches the beginning of `got`."""
    lines = want.splitlines()
    for count, line in enumerate(lines, start=1):
        beginning = "\n".join([*lines[:count], "...\n"])
        if not checker.check_output(beginning, got, _FLAGS):
            return line
    return "(none: there is more after the last one)" if lines else ""


def _namespace(box: Sandbox) -> dict[str, Any]:
    shell = _Shell(box)
    functions = (shell.run, shell.quiet, shell.wait_for, shell.cd, shell.project, example)
    return {**{function.__name__: function for function in functions}, "sleep": time.sleep}


def example(name: str) -> str:
    """Returns the path of an example of the project."""
    return str(EXAMPLES / name)


class _Shell:
    """The functions of a document that run commands. They return nothing: doctest would print a value."""

    def __init__(self, box: Sandbox) -> None:
        self._environ = box.environ
        self._folder = self._root = box.folder

    def cd(self, folder: str) -> None:
        self._folder = (self._folder / folder).resolve(strict=True)

    def project(self, guild_file: str) -> None:
        self._folder = pathlib.Path(tempfile.mkdtemp(prefix="project-", dir=self._root))
        (self._folder / "guild.yml").write_text(guild_file, encoding="utf-8")

    def run(self, command: str, timeout: float = LONGEST_COMMAND) -> None:
        _show(self._finished(command, timeout))

    def quiet(self, command: str, timeout: float = LONGEST_COMMAND) -> None:
        finished = self._finished(command, timeout)
        if finished.exit_code != 0:
            _show(finished)

    def wait_for(
        self,
        condition: str | Callable[[], object],
        contains: str | Sequence[str] = (),
        lacks: str | Sequence[str] = (),
        times: int = 1,
        timeout: float = DEADLINE,
    ) -> None:
        """Waits until a command's output has each text of `contains` that many times or more, and none of `lacks`."""
        deadline = time.monotonic() + timeout
        while True:
            last, is_met = self._look(condition, _texts(contains), _texts(lacks), times)
            if is_met:
                return
            if time.monotonic() >= deadline:
                break
            time.sleep(_LOOK)
        sys.stdout.write(f"After {timeout:g} seconds, still not as expected:\n{last}\n")

    def _look(
        self, condition: str | Callable[[], object], contains: Sequence[str], lacks: Sequence[str], times: int
    ) -> tuple[str, bool]:
        if callable(condition):
            value = condition()
            return repr(value), bool(value)
        finished = self._finished(condition, LONGEST_COMMAND)
        has_all = all(finished.output.count(text) >= times for text in contains)
        has_none = not any(text in finished.output for text in lacks)
        return str(finished), finished.exit_code == 0 and has_all and has_none

    def _finished(self, command: str, timeout: float) -> Finished:
        return run_command(command, self._environ, self._folder, timeout)


def _texts(given: str | Sequence[str]) -> Sequence[str]:
    return (given,) if isinstance(given, str) else given


def _show(finished: Finished) -> None:
    output = finished.output
    ending = "" if not output or output.endswith("\n") else "\n"
    result = "killed, it did not end in time" if finished.exit_code is None else f"exit {finished.exit_code}"
    sys.stdout.write(f"{output}{ending}<{result}>\n")


def is_document(path: pathlib.Path) -> bool:
    """Returns whether a file is a document to be collected: a Markdown file beside this module."""
    return path.suffix == ".md" and os.path.samefile(path.parent, PROJECT / "tests" / "stories")
