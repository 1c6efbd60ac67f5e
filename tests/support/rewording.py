"""Changes the wording of every message of guild_dask on import, to check that no code depends on it.

`rewording.install()` does so in this process; call it before the first import. `environment(folder)` returns variables
with which every Python process calls it first.

A message is a text, or a filled-in f-string, with a space between two words. Not changed are docstrings, values of
enums (names in records), texts that other programs read, and texts that another text is compared or matched with: code
that searches for words of a message then no longer finds them.
"""

import ast
import importlib.abc
import importlib.machinery
import os
import pathlib
import re
import sys
import types
from collections.abc import Mapping, Sequence
from importlib.machinery import ModuleSpec

PACKAGE = "guild_dask"

# Methods, and functions of `re`, that match a text with their arguments.
_MATCHING = frozenset(
    ("compile", "endswith", "findall", "fullmatch", "match", "partition", "removeprefix", "removesuffix", "rpartition")
) | frozenset(("search", "split", "startswith", "sub"))

_LITERALS = (ast.Constant, ast.List, ast.Set, ast.Tuple)

# Every reworded message contains this.
MARK = "~"

_MESSAGE = re.compile(r"\w[^\w\s]* [^\w\s]*\w")
_PLACEHOLDER = "x"
_WORD = re.compile("[a-z]{2}", re.IGNORECASE)

# Command lines for users, formats of times, and texts that Guild writes.
_OF_OTHERS = re.compile(r"guild(-dask)? [a-z]|%Y|export CMD_DIR=")

# Modules with texts that job queues, Dask, the kernel and Python itself read or write.
_MODULES_OF_OTHERS = frozenset(
    f"{PACKAGE}.{name}"
    for name in ("cluster.queue_inquiries", "cluster.dask_settings", "host.cgroups", "mends.loading")
)

# Every Python loads these at its start.
_LOADED_BEFORE = frozenset((PACKAGE, f"{PACKAGE}.mends", f"{PACKAGE}.mends.hook"))


class Rewording(ast.NodeTransformer):
    """Puts a mark before each word of a message but the first, and removes colons."""

    def visit_ClassDef(self, node: ast.ClassDef) -> ast.AST:
        return node if any(ast.unparse(base) == "enum.Enum" for base in node.bases) else self._without_docstring(node)

    def visit_FunctionDef(self, node: ast.FunctionDef) -> ast.AST:
        return self._without_docstring(node)

    def visit_AsyncFunctionDef(self, node: ast.AsyncFunctionDef) -> ast.AST:
        return self._without_docstring(node)

    def visit_Module(self, node: ast.Module) -> ast.AST:
        return self._without_docstring(node)

    def _without_docstring(self, node: ast.AST) -> ast.AST:
        docstring = ast.get_docstring(node, clean=False)  # type: ignore[arg-type]  # one of these four
        first = node.body[0] if docstring is not None else None  # type: ignore[attr-defined]
        self.generic_visit(node)
        if first is not None:
            node.body[0] = ast.Expr(ast.Constant(docstring))  # type: ignore[attr-defined]
        return node

    def visit_Call(self, node: ast.Call) -> ast.AST:
        if isinstance(node.func, ast.Attribute) and node.func.attr in _MATCHING:
            node.func.value = self.visit(node.func.value)
            return node
        return self.generic_visit(node)

    def visit_Compare(self, node: ast.Compare) -> ast.AST:
        sides = (node.left, *node.comparators)
        node.left, *node.comparators = (each if isinstance(each, _LITERALS) else self.visit(each) for each in sides)
        return node

    def visit_Constant(self, node: ast.Constant) -> ast.AST:
        return ast.Constant(reworded(node.value)) if isinstance(node.value, str) and is_message(node.value) else node

    def visit_JoinedStr(self, node: ast.JoinedStr) -> ast.AST:
        texts = [str(part.value) if isinstance(part, ast.Constant) else _PLACEHOLDER for part in node.values]
        has_words = any(isinstance(part, ast.Constant) and _WORD.search(str(part.value)) for part in node.values)
        is_one = has_words and is_message("".join(texts))
        values: list[ast.expr] = []
        for part in node.values:
            if isinstance(part, ast.FormattedValue):
                part.value = self.visit(part.value)  # a format specification is not a message
                values.append(part)
            else:
                assert isinstance(part, ast.Constant)
                values.append(ast.Constant(reworded(str(part.value))) if is_one else part)
        return ast.JoinedStr(values)


def is_message(text: str) -> bool:
    """Returns whether a text in the source is a message."""
    return bool(_MESSAGE.search(text)) and not _OF_OTHERS.match(text)


def reworded(text: str) -> str:
    """Returns a message with another wording."""
    return text.replace(": ", ", ").replace(" ", f" {MARK}")


class _Loader(importlib.machinery.SourceFileLoader):
    def get_code(self, fullname: str) -> types.CodeType | None:
        path = self.get_filename(fullname)
        tree = Rewording().visit(ast.parse(self.get_data(path)))  # do not use the cached bytecode
        return compile(ast.fix_missing_locations(tree), path, "exec", dont_inherit=True)


class _Finder(importlib.abc.MetaPathFinder):
    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: types.ModuleType | None = None
    ) -> ModuleSpec | None:
        if fullname.partition(".")[0] != PACKAGE or fullname in _MODULES_OF_OTHERS:
            return None
        for finder in sys.meta_path:
            spec = None if finder is self else finder.find_spec(fullname, path, target)
            if spec and spec.origin and spec.origin.endswith(".py"):
                spec.loader = _Loader(fullname, spec.origin)
                return spec
        return None


def install() -> None:
    """Rewords the messages of each module of the package that is imported from now on."""
    assert not {name for name in sys.modules if name.partition(".")[0] == PACKAGE} - _LOADED_BEFORE
    sys.meta_path.insert(0, _Finder())


def environment(folder: pathlib.Path, environ: Mapping[str, str] = os.environ) -> dict[str, str]:
    """Returns variables with which every Python process rewords its messages; writes a module into the folder."""
    folder.mkdir(exist_ok=True)
    (folder / "sitecustomize.py").write_text("import rewording\nrewording.install()\n")
    paths = [str(folder), str(pathlib.Path(__file__).parent), *filter(None, [environ.get("PYTHONPATH")])]
    return {**environ, "PYTHONPATH": os.pathsep.join(paths)}
