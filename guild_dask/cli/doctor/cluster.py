"""Checks Dask's configuration, the dashboard's port and job queues."""

import os
import shutil
import sys
from collections.abc import Iterator, Mapping
from typing import Any

from guild_dask.cli.doctor.finding import Finding, bad, good, note
from guild_dask.cli.doctor.installation import version_of
from guild_dask.plan.units import seconds_for_walltime
from guild_dask.settings.settings import BadSetting, Settings, section_of, settings_for

# The name of each job queue in dask-jobqueue's configuration, and the command that submits jobs.
SUBMIT_COMMANDS = {
    "slurm": "sbatch",
    "pbs": "qsub",
    "sge": "qsub",
    "lsf": "bsub",
    "oar": "oarsub",
    "moab": "msub",
    "htcondor": "condor_submit",
}
_SHORT = 3600.0


def findings() -> Iterator[Finding]:
    """Yields the findings about Dask."""
    try:
        from guild_dask.cluster import dask_settings
    except ValueError as e:  # Dask reads its configuration when it is imported
        yield bad("configuration", str(e), "correct or remove that file; see ~/.config/dask")
        return
    configuration = dask_settings.configuration()
    section, unknown = section_of(configuration)
    try:
        settings = settings_for({}, section)
    except BadSetting as e:
        yield bad("configuration", str(e), "change it in ~/.config/dask, or in the environment (DASK_GUILD_DASK__...)")
        settings = Settings()
    else:
        yield _configuration(section, unknown)
    yield _port(settings)
    yield _found_gpus()
    yield from _queues(configuration.get("jobqueue") or {}, settings)


def _configuration(section: Mapping[str, Any], unknown: list[str]) -> Finding:
    if unknown:
        names = ", ".join(map(repr, unknown))
        return bad("configuration", f"section 'guild-dask' has unknown keys: {names}", "remove or rename them")
    known = ", ".join(f"{name}={value}" for name, value in section.items())
    return good("configuration", f"defaults: {known}" if known else "no defaults configured")


def _found_gpus() -> Finding:
    from guild_dask.cluster import gpus

    found = gpus.found(os.environ)
    return (good if found.names else note)("devices", f"GPUs: {found}")


def _port(settings: Settings) -> Finding:
    from guild_dask.cluster import dashboard
    from guild_dask.cluster.base import ClusterError

    wanted = settings.dashboard_address
    if wanted is None:
        return note("port", "the dashboard is disabled")
    try:
        free = dashboard.free_port(wanted)
    except ClusterError as e:
        return bad("port", str(e), "use another dashboard-address")
    if free.port != wanted.port:
        return note(
            "port", f"{wanted.port} is in use; a scheduler will use {free.port or 'any free port'} for its dashboard"
        )
    return good("port", f"{wanted.port} on {wanted.host} is free for the dashboard")


def _queues(jobqueue: Mapping[str, Any], settings: Settings) -> Iterator[Finding]:
    there = {name: command for name, command in SUBMIT_COMMANDS.items() if shutil.which(command)}
    if not there:
        yield note("job queue", "no job queue on this host (no sbatch, qsub, bsub, ...)")
        return
    if version_of("dask-jobqueue") is None:
        names = ", ".join(there)
        yield note(
            "job queue",
            f"{names} found, but dask-jobqueue is not installed",
            f"{sys.executable} -m pip install dask-jobqueue cryptography",
        )
        return
    for name in there:
        section = jobqueue.get(name) or {}
        yield _queue(name, section)
        yield from _gpus(name, section, settings)


def _gpus(name: str, section: Mapping[str, Any], settings: Settings) -> Iterator[Finding]:
    """Yields a note if workers declare GPUs and their jobs request none from the queue."""
    declared = [*_words(section, "worker-extra-args"), *settings.resources.amounts]
    requested = _words(section, "job-extra-directives")
    if any("gpu" in word.lower() for word in declared) and not any("gpu" in word.lower() for word in requested):
        example = "--gres=gpu:1" if name == "slurm" else "-l gpu=1"
        yield note(
            "gpus",
            f"{name}: workers declare GPUs, but their jobs request none from the queue",
            f"add a line such as '{example}' to jobqueue: {name}: job-extra-directives",
        )


def _words(section: Mapping[str, Any], key: str) -> list[str]:
    """Returns the list under a key. A key from the environment has underscores."""
    return [str(word) for name in (key, key.replace("-", "_")) for word in section.get(name) or ()]


def _queue(name: str, section: Mapping[str, Any]) -> Finding:
    missing = [key for key in ("cores", "memory") if section.get(key) is None]
    if missing:
        where = f"jobqueue: {name}: {' and '.join(missing)}"
        return note(
            "job queue",
            f"{name}: the configuration lacks {' and '.join(missing)}",
            f"set {where} in ~/.config/dask",
        )
    walltime = seconds_for_walltime(name, str(section.get("walltime") or ""))
    text = f"{name}: jobs of {section['cores']} cores and {section['memory']}"
    if walltime is None:
        return note("walltime", f"{text}, without a readable walltime", f"set jobqueue: {name}: walltime")
    if walltime < _SHORT:
        return note(
            "walltime",
            f"{text} end after {section['walltime']}, which ends longer runs",
            f"set jobqueue: {name}: walltime to more than the duration of your longest run",
        )
    return good("walltime", f"{text}, for {section['walltime']} each")
