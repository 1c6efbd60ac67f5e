"""Checks installed versions, the command `guild`, that Guild finds the plugin, and that Guild is mended."""

import importlib.metadata
import json
import os
import shlex
import shutil
import subprocess
import sys
from collections.abc import Iterator

from packaging.requirements import InvalidRequirement, Requirement

from guild_dask.cli.doctor.finding import Finding, bad, good, note
from guild_dask.mends.hook import VARIABLE
from guild_dask.mends.mend import GUILD
from guild_dask.mends.report import Status
from guild_dask.mends.table import MENDS

_TIMEOUT = 60.0

# Prints the module that provides the operation dask:scheduler.
_PROVIDER = "from guild import model_proxy as m; print(type(m.resolve_model_op('dask:scheduler')[0]).__module__)"


def findings() -> Iterator[Finding]:
    """Yields the findings about versions and Guild."""
    yield _versions()
    yield _guild()
    yield _plugin()
    yield from _mends()


def _versions() -> Finding:
    wrong = []
    wanted = []
    there = []
    for text in importlib.metadata.requires("guild-dask") or ():
        requirement = _requirement(text)
        if requirement is None:
            continue
        version = version_of(requirement.name)
        if version is None or not requirement.specifier.contains(version, prereleases=True):
            wrong.append(f"{requirement.name} is {version or 'missing'}, but {requirement.specifier} is required")
            wanted.append(shlex.quote(f"{requirement.name}{requirement.specifier}"))
        elif requirement.name in ("guildai", "distributed"):
            there.append(f"{requirement.name} {version}")
    python = ".".join(map(str, sys.version_info[:3]))
    if wrong:
        return bad("versions", "; ".join(wrong), f"{sys.executable} -m pip install {' '.join(wanted)}")
    return good("versions", f"Python {python}, {', '.join(there)}, and all dependencies")


def _requirement(text: str) -> Requirement | None:
    """Returns a requirement that applies to this Python and belongs to no extra; else None."""
    try:
        requirement = Requirement(text)
    except InvalidRequirement:
        return None
    return requirement if requirement.marker is None or requirement.marker.evaluate({"extra": ""}) else None


def version_of(name: str) -> str | None:
    """Returns the installed version of a package, or None."""
    try:
        return importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        return None


def _guild() -> Finding:
    found = shutil.which("guild")
    own = os.path.join(os.path.dirname(sys.executable), "guild")
    if found is None:
        return bad("guild", "there is no command 'guild' on the PATH", f"activate the environment of {sys.executable}")
    if os.path.exists(own) and not os.path.samefile(found, own):
        return bad(
            "guild",
            f"'guild' is {found}, in another environment than guild-dask",
            f"activate the environment of {sys.executable}, or install guild-dask in that of {found}",
        )
    return good("guild", found)


def _plugin() -> Finding:
    remedy = f"reinstall guild-dask in the environment of {sys.executable}"
    try:
        done = subprocess.run(
            [sys.executable, "-c", _PROVIDER], capture_output=True, text=True, timeout=_TIMEOUT, check=False
        )
    except (OSError, subprocess.TimeoutExpired) as e:
        return bad("plugin", f"cannot run Guild: {e}", remedy)
    who = done.stdout.strip()
    if who == "guild_dask.plugin":
        return good("plugin", "guild-dask provides dask:scheduler")
    if who:
        return bad("plugin", f"{who} provides dask:scheduler, not guild-dask", remedy)
    last = done.stderr.strip().splitlines()[-1:] or ["no answer"]
    return bad("plugin", f"Guild does not work here: {last[0]}", remedy)


def _mends() -> Iterator[Finding]:
    """Yields the status of each mend of Guild, as a new process of Python sees it."""
    command = [sys.executable, "-m", "guild_dask.mends.report"]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=_TIMEOUT, check=True)
        statuses = json.loads(done.stdout)
    except (OSError, subprocess.SubprocessError, ValueError) as e:
        yield bad("mends", f"cannot check the mends of Guild: {e}", shlex.join(command))
        return
    for mend in MENDS:
        status, error = statuses.get(mend.name, (Status.FAILED.value, "no answer"))
        versions = ", ".join(map(str, mend.needed or (GUILD,)))
        if status == Status.FAILED.value:
            remedy = f"reinstall guild-dask in the environment of {sys.executable}"
            yield bad("mend", f"{mend.name}: failed ({error}); without it, {mend.why}", remedy)
        elif status == Status.OFF.value:
            yield note("mend", f"{mend.name}: switched off; without it, {mend.why}", f"unset {VARIABLE}")
        elif status == Status.APPLIED.value:
            yield good("mend", f"{mend.name}: applied ({versions})")
        else:
            yield good("mend", f"{mend.name}: not needed ({versions})")
