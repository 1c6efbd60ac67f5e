"""Encrypted connections, with certificates that are made for one cluster only."""

import atexit
import contextlib
import os
import pathlib
import shutil
import tempfile
from typing import Any

import dask.config
from distributed import Security

from guild_dask.cluster.base import ClusterError


def security_for(run_dir: str) -> tuple[Any, str]:
    """Returns the security of connections, and the folder for the files that workers need.

    The user's own certificates are used where Dask's configuration has some.
    """
    parent = pathlib.Path(run_dir, "certificates")
    parent.mkdir(mode=0o700, exist_ok=True)
    folder = tempfile.mkdtemp(dir=parent)  # readable by the user only, and one for each pool
    if dask.config.get("distributed.comm.tls.ca-file", None):
        return Security(), folder
    try:
        return Security.temporary(), folder
    except ImportError as e:
        raise ClusterError(
            "encrypted connections need the package cryptography: pip install cryptography in this environment"
        ) from e


def worker_options(security: Any, folder: str) -> list[str]:
    """Returns the options of `dask worker` for encrypted connections, and writes the files that they name.

    The files are removed when this process ends; workers read them when they start.
    """
    options = []
    for key, value in security.get_tls_config_for_role("worker").items():
        if key == "ciphers" or not value:
            continue
        path = value
        if "\n" in value:
            path = os.path.join(folder, f"worker-{key}.pem")
            with open(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "w", encoding="ascii") as f:
                f.write(value)
            atexit.register(_remove, path)
        options += [f"--tls-{key.replace('_', '-')}", path]
    return options


def _remove(path: str) -> None:
    with contextlib.suppress(OSError):
        os.unlink(path)


def remove_certificates(cluster: Any, folder: str) -> None:
    """Removes the folder of a closed cluster."""
    # dask-jobqueue keeps some files open and removes them itself; it prints errors if they are gone.
    for name in ("_job_ca_file", "_job_cert", "_job_key"):
        kept = getattr(cluster, name, None)
        if kept is not None:
            kept.close()
    shutil.rmtree(folder, ignore_errors=True)
