"""Turns a `python -um guild.op_main` into a warm server, a process that forks operations (see warm_server.py).

The warm server is started with the folder of this file on its PYTHONPATH, so that Python imports this module at its
start. It leaves no trace: the folder is taken off the path, a sitecustomize of the user's is imported in its place, and
nothing more happens until Python asks for the code of `guild.op_main`.
"""

import os
import sys

TYPE_CHECKING = False  # typing itself must not be loaded before Guild loads it
if TYPE_CHECKING:
    from typing import Any

_FOLDER = os.path.dirname(os.path.abspath(__file__))


class _Loader:
    """The module's own loader, but for the moment at which Python asks for the code."""

    def __init__(self, spec: "Any") -> None:
        self._spec = spec
        self._loader = spec.loader

    def __getattr__(self, name: str) -> "Any":
        return getattr(self._loader, name)

    def get_code(self, name: str) -> "Any":
        _serve()  # returns in the processes of operations only
        self._spec.loader = self._loader
        main = vars(sys.modules["__main__"])
        if main.get("__loader__") is self:
            main["__loader__"] = self._loader
        return self._loader.get_code(name)


class _Finder:
    """Waits for `guild.op_main`."""

    def __init__(self, trace: "str | None") -> None:
        self._trace = trace  # the name of this module, if there is no other of that name

    def find_spec(self, name: str, path: "Any" = None, _target: "Any" = None) -> "Any":
        if name != "guild.op_main":
            return None
        # A finder before this one may have called it, and adds to what it finds.
        after = sys.meta_path[sys.meta_path.index(self) + 1 :]
        sys.meta_path.remove(self)
        if self._trace:
            del sys.modules[self._trace]
        for finder in after:
            find_spec = getattr(finder, "find_spec", None)
            spec = find_spec(name, path) if find_spec else None
            if spec is not None:
                spec.loader = _Loader(spec)
                return spec
        return None


def _serve() -> None:
    descriptor = int(os.environ.pop("GUILD_DASK_WARM_SERVER"))
    names = [name for name in os.environ.pop("GUILD_DASK_PRELOAD", "").split(",") if name]
    _load_guild()
    _drop_output()  # not earlier: preloaded modules may print when they are imported
    import time  # which Guild has loaded

    times = [time.monotonic()]
    preload = _executed("warm_preload.py")
    refused = preload["load"](names, descriptor)
    if preload["threads_left"]():
        os._exit(1)  # operations would not have them
    times.append(time.monotonic())
    loaded, folders = list(sys.modules), set(sys.path_importer_cache)
    # What the server itself needs is loaded after that, and is taken out of sys.modules before an operation begins.
    server = _executed("warm_server.py")
    for folder in set(sys.path_importer_cache) - folders:
        del sys.path_importer_cache[folder]
    server["serve"](descriptor, loaded, {"times": times, "refused": refused})


def _executed(name: str) -> "dict[str, Any]":
    """Returns the namespace of a file of guild-dask, which is executed under a name that is not in sys.modules."""
    path = os.path.join(os.path.dirname(_FOLDER), name)
    with open(path, encoding="utf-8") as f:
        code = compile(f.read(), path, "exec")
    namespace: dict[str, Any] = {"__name__": f"guild_dask_{name.removesuffix('.py')}", "__file__": path}
    exec(code, namespace)
    return namespace


def _load_guild() -> None:
    """Imports what `guild.op_main` imports before it runs the user's code, in the same order."""
    import importlib  # Python has loaded it to find guild.op_main

    package = sys.modules["guild"]
    module = importlib.import_module("guild.op_main")
    if "__warningregistry__" in vars(module):
        vars(sys.modules["__main__"])["__warningregistry__"] = module.__warningregistry__
    # Python runs that module as __main__, so that a fresh process does not have it under its own name.
    del sys.modules["guild.op_main"], package.op_main
    try:  # noqa: SIM105  # contextlib may not be loaded before Guild loads it
        importlib.import_module("absl.logging")  # guild.log imports it when logging begins
    except ImportError:
        pass
    names = os.environ.get("GUILD_PLUGINS")
    if names:
        os.environ["NO_GUILD_MODEL_FINDER"] = "1"
        importlib.import_module("guild.model")
        del os.environ["NO_GUILD_MODEL_FINDER"]
        plugin = importlib.import_module("guild.plugin")
        for name in names.split(","):
            found = plugin.for_name(name)
            if hasattr(found, "_patch_guild_summary"):
                importlib.import_module("guild.summary")  # it does so before the user's code begins
    importlib.import_module("guild.python_util")


def _keep_output() -> None:
    """Redirects early output to a file, since the pipe has no reader; exits if something is in the pipe.

    The file is in the server's own folder, without a name: many Pythons, such as conda's, lack os.memfd_create().
    """
    reading = int(os.environ.pop("GUILD_DASK_WARM_OUTPUT"))
    os.set_blocking(reading, False)
    try:
        os.read(reading, 1)
    except BlockingIOError:
        output = os.open("output", os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o600)
        os.unlink("output")
        _print_to(output)
        os.close(reading)
    else:
        os._exit(1)


def _drop_output() -> None:
    """Redirects output to the null device; exits if something was printed, which each run is to print."""
    if os.fstat(1).st_size:
        os._exit(1)
    _print_to(os.open(os.devnull, os.O_WRONLY))


def _print_to(descriptor: int) -> None:
    for each in (1, 2):
        os.dup2(descriptor, each)
    os.close(descriptor)


def _install() -> None:
    _keep_output()
    given = os.environ["PYTHONPATH"].partition(os.pathsep)[2]
    if given:
        os.environ["PYTHONPATH"] = given
    else:
        del os.environ["PYTHONPATH"]
    sys.path[:] = [each for each in sys.path if os.path.abspath(each) != _FOLDER]
    sys.path_importer_cache.pop(_FOLDER, None)
    machinery: Any = sys.modules["_frozen_importlib"]
    found = sys.modules["_frozen_importlib_external"].PathFinder.find_spec(
        __name__
    )  # the user's, or the distribution's
    if found and found.loader:
        sys.modules[__name__] = machinery.module_from_spec(found)  # Python takes it from there when this import is over
        found.loader.exec_module(sys.modules[__name__])
    sys.meta_path.insert(0, _Finder(None if found else __name__))


_install()
