"""Is what is installed what we need, and does Guild find us?"""

import importlib.metadata
import os
import shlex
import shutil
import subprocess
import sys
from collections.abc import Iterator

from packaging.requirements import InvalidRequirement, Requirement

from guild_dask.cli.doctor.finding import Finding, bad, good

_LONGEST = 60.0

# Prints which module answers for our operation.
_WHO_ANSWERS = "from guild import model_proxy as m; print(type(m.resolve_model_op('dask:scheduler')[0]).__module__)"


def findings() -> Iterator[Finding]:
    """Yields what was found about versions, and about Guild."""
    yield _versions()
    yield _guild()
    yield _plugin()


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
            wrong.append(f"{requirement.name} is {version or 'missing'}, and should be {requirement.specifier}")
            wanted.append(shlex.quote(f"{requirement.name}{requirement.specifier}"))
        elif requirement.name in ("guildai", "distributed"):
            there.append(f"{requirement.name} {version}")
    python = ".".join(map(str, sys.version_info[:3]))
    if wrong:
        return bad("versions", "; ".join(wrong), f"{sys.executable} -m pip install {' '.join(wanted)}")
    return good("versions", f"Python {python}, {', '.join(there)}, and all that they need")


def _requirement(text: str) -> Requirement | None:
    """Returns a requirement that counts here: of this Python, and of no extra."""
    try:
        requirement = Requirement(text)
    except InvalidRequirement:
        return None
    return requirement if requirement.marker is None or requirement.marker.evaluate({"extra": ""}) else None


def version_of(name: str) -> str | None:
    """Returns which version of a package is installed, or None."""
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
            f"'guild' is {found}, which is not of the environment that guild-dask is in",
            f"activate the environment of {sys.executable}, or install guild-dask into that of {found}",
        )
    return good("guild", found)


def _plugin() -> Finding:
    remedy = f"install guild-dask anew into the environment of {sys.executable}"
    try:
        done = subprocess.run(
            [sys.executable, "-c", _WHO_ANSWERS], capture_output=True, text=True, timeout=_LONGEST, check=False
        )
    except (OSError, subprocess.TimeoutExpired) as e:
        return bad("plugin", f"cannot ask Guild: {e}", remedy)
    who = done.stdout.strip()
    if who == "guild_dask.plugin":
        return good("plugin", "guild-dask answers for dask:scheduler")
    if who:
        return bad("plugin", f"dask:scheduler is that of {who}, not of guild-dask", remedy)
    last = done.stderr.strip().splitlines()[-1:] or ["no answer"]
    return bad("plugin", f"Guild does not work here: {last[0]}", remedy)
