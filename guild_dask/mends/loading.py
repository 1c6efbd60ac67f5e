"""Applies mends to the modules of Guild while Python loads them.

A stand-in for a module that no longer exists is given to the mended modules only: they get builtins of their own, with
an `__import__` that knows the stand-ins. So nothing is added to sys.modules, and no other code, the user's above all,
sees a stand-in or a change.

Nothing here raises: a mend that fails is noted, and Guild goes on without it.
"""

import builtins
import sys
from collections.abc import Mapping, Sequence
from importlib import import_module
from importlib.machinery import ModuleSpec
from types import CodeType, FunctionType, ModuleType
from typing import Any

from guild_dask.mends import table
from guild_dask.mends.mend import Mend, version_of

# Mends that were applied in this process, and errors of those that failed.
APPLIED: set[str] = set()
FAILED: dict[str, str] = {}

# The function of guild.python_util that runs the user's script.
_RUNS_CODE_OF_OTHERS = frozenset(("exec_script",))

# What Python gets as the code of a mended module that it runs as a program, in a namespace that it chooses.
_PROGRAM = compile("__import__('guild_dask.mends.loading', fromlist=['x']).run_program(globals())", "<mends>", "exec")


def install() -> None:
    """Mends the modules of Guild from now on."""
    sys.meta_path.insert(0, Mending(table.MENDS))


class Mending:
    """A finder that finds mended modules where other finders find them, and gives them a loader that mends."""

    def __init__(self, mends: Sequence[Mend]) -> None:
        self._mends: dict[str, list[Mend]] = {}
        for mend in mends:
            for name in () if mend.refuses else mend.where:
                self._mends.setdefault(name, []).append(mend)
        self._refused = {mend.refuses: mend for mend in mends if mend.refuses}

    def find_spec(self, name: str, path: Any = None, target: Any = None) -> ModuleSpec | None:
        if name in self._refused:
            self._refuse(self._refused[name])
        if name not in self._mends:
            return None
        for finder in sys.meta_path:
            find_spec = getattr(finder, "find_spec", None)  # as Python does: before 3.4, finders had another method
            spec: ModuleSpec | None = find_spec(name, path, target) if find_spec and finder is not self else None
            if spec is not None:
                _mend_loader(spec, self._mends[name])
                return spec
        return None

    def _refuse(self, mend: Mend) -> None:
        if _is_needed(mend) and _is_for(mend.where):
            APPLIED.add(mend.name)
            raise ImportError(f"{mend.refuses}: {mend.why}")


def _is_for(modules: Sequence[str]) -> bool:
    """Returns whether the import at work is on behalf of Guild, and not of a user's script that Guild runs."""
    frame: Any = sys._getframe(1)
    while frame is not None:
        name = frame.f_globals.get("__name__", "")
        if name == "guild.python_util" and frame.f_code.co_name == "exec_script":
            return False
        if any(name == each or name.startswith(f"{each}.") for each in modules):
            return True
        frame = frame.f_back
    return False


def _is_needed(mend: Mend) -> bool:
    try:
        return mend.is_needed(version_of)
    except Exception as e:  # noqa: BLE001
        FAILED[mend.name] = repr(e)
        return False


def _mend_loader(spec: ModuleSpec, mends: Sequence[Mend]) -> None:
    """Has the loader mend its module. The loader of a module that is a file belongs to that module alone."""
    loader: Any = spec.loader
    get_code = getattr(loader, "get_code", None)
    if get_code is None or not hasattr(loader, "__dict__"):
        return
    imports = [mend for mend in mends if mend.imports]
    changes = [mend for mend in mends if mend.change]

    def code() -> CodeType:
        found: CodeType = get_code(spec.name)
        return found

    def exec_module(module: ModuleType) -> None:
        _exec(code(), vars(module), imports)
        for mend in changes:
            _change(module, mend)

    loader.exec_module = exec_module
    loader.get_code = lambda _name=None: _PROGRAM
    loader.program = (code, imports, bool(changes))


def _exec(code: CodeType, namespace: dict[str, Any], mends: Sequence[Mend]) -> None:
    needed = [mend for mend in mends if _is_needed(mend)]
    if needed:
        namespace["__builtins__"] = _builtins_for(needed)
    exec(code, namespace)
    if needed:
        _with_usual_builtins(namespace)


def _change(module: ModuleType, mend: Mend) -> None:
    if mend.change is None or not _is_needed(mend):
        return
    try:
        mend.change(module)
        APPLIED.add(mend.name)
    except Exception as e:  # noqa: BLE001
        FAILED[mend.name] = repr(e)


def run_program(namespace: dict[str, Any]) -> None:
    """Runs a mended module whose code Python has asked for: `python -m`, or the main module of a spawned process."""
    spec = namespace["__spec__"]
    code, imports, is_changed = spec.loader.program
    if is_changed and namespace["__name__"] == "__main__":
        # The change of a module comes after its code, which in a program includes all that the program does.
        import_module(spec.name).main()
    else:
        _exec(code(), namespace, imports)


def _builtins_for(mends: Sequence[Mend]) -> dict[str, Any]:
    """Returns builtins whose imports know the stand-ins of the mends."""
    by_name = {name: mend for mend in mends for name in mend.imports}

    def mended_import(
        name: str,
        namespace: Mapping[str, object] | None = None,
        local: Mapping[str, object] | None = None,
        fromlist: Sequence[str] | None = (),
        level: int = 0,
    ) -> ModuleType:
        mend = None if level else by_name.get(name)
        if mend:
            try:
                found = mend.imports[name]()
                APPLIED.add(mend.name)
            except Exception as e:  # noqa: BLE001
                FAILED[mend.name] = repr(e)
            else:
                return found
        return builtins.__import__(name, namespace, local, fromlist or (), level)

    return {**vars(builtins), "__import__": mended_import}


def _with_usual_builtins(namespace: dict[str, Any]) -> None:
    """Gives back the usual builtins to functions that run code of others, which would inherit the mended ones."""
    own = namespace["__builtins__"]
    namespace["__builtins__"] = builtins
    for name in _RUNS_CODE_OF_OTHERS & namespace.keys():
        old = namespace[name]
        namespace[name] = FunctionType(old.__code__, namespace, name, old.__defaults__, old.__closure__)
    namespace["__builtins__"] = own
