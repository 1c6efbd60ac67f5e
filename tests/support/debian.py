"""A newer Debian in a folder, with Pythons and batch systems that this machine does not have.

Nothing is installed on this machine, and nothing of it is named here: the mirror is the one of apt, and pip in the
folder has the configuration of pip here, with the local folders and the certificates that it names. The folder is kept,
because making it takes minutes. Each command in it has its own mounts and processes, which end with it.
"""

import argparse
import os
import pathlib
import shlex
import shutil
import subprocess
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from tests.support.sandbox import PROJECT

# A release that was not signed anew for some days, as on a mirror that lags behind, is good enough here.
_APT = "apt-get -qq -o Acquire::Check-Valid-Until=false"

_CERTIFICATES = pathlib.Path("/etc/ssl/certs/ca-certificates.crt")

_USER = "tester"

_ENTER = """
set -e
root=$1; shift
mount --bind "$root" "$root"
mount -t proc proc "$root/proc"
mount --rbind /sys "$root/sys"
mount --rbind /dev "$root/dev"
mount -t tmpfs tmpfs "$root/run"
for path in $LOCAL; do mount --bind -o ro "$path" "$root$path"; done
# Not chroot alone: commands in the folder make hosts, and enter these, which leads to the root of the mounts.
mkdir -p "$root/.outside"
cd "$root"
pivot_root . .outside
[ ! -x /bin/umount ] || umount -l /.outside
chroot . "$@"  # not exec: the shell reaps what becomes an orphan
"""


@dataclass(frozen=True)
class Debian:
    """A release of Debian in a folder."""

    suite: str
    root: pathlib.Path

    def install(self, *packages: str) -> None:
        """Makes the folder if it is missing, and installs packages in it."""
        if not (self.root / "etc" / "apt").exists():
            scripts = pathlib.Path("/usr/share/debootstrap/scripts")
            script = scripts / (self.suite if (scripts / self.suite).exists() else "sid")
            command = [
                "debootstrap",
                "--variant=minbase",
                "--include=ca-certificates",
                self.suite,
                str(self.root),
                mirror(),
            ]
            _run([*command, str(script)])
        policy = self.root / "usr" / "sbin" / "policy-rc.d"  # keeps packages from starting services
        policy.write_text("#!/bin/sh\nexit 101\n")
        policy.chmod(0o755)
        self.run(f"{_APT} update && {_APT} install -y --no-install-recommends {shlex.join(packages)} > /dev/null")

    def run(self, command: str, variables: Mapping[str, str] | None = None) -> None:
        """Runs a shell command in the folder; raises CalledProcessError if it fails."""
        own = {
            "HOME": "/root",
            "PATH": "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin",
            "LANG": "C.UTF-8",
        }
        pip = pip_variables()
        local = sorted(_local_paths(pip.values()))
        for path in local:
            inside = self.root / path.relative_to("/")
            inside.parent.mkdir(parents=True, exist_ok=True)
            inside.mkdir(exist_ok=True) if path.is_dir() else inside.touch()
        for name in ("hosts", "resolv.conf"):
            shutil.copyfile(f"/etc/{name}", self.root / "etc" / name)
        (self.root / "etc" / "hostname").write_text("newer\n")
        enter = ["unshare", "--mount", "--pid", "--fork", "--kill-child", "sh", "-c", _ENTER, "enter", str(self.root)]
        places = " ".join(map(str, local))
        environ = {**own, **pip, "DEBIAN_FRONTEND": "noninteractive", **(variables or {}), "LOCAL": places}
        _run([*enter, "sh", "-ec", command], environ)

    def copy_project(self) -> str:
        """Copies this checkout into the folder, and returns where it is there."""
        target = self.root / "srv" / "project"  # where every user can read it
        shutil.rmtree(target, ignore_errors=True)
        ignored = shutil.ignore_patterns(".git", ".venv", ".tox", ".*_cache", "__pycache__", "build", "*.egg-info")
        shutil.copytree(PROJECT, target, symlinks=True, ignore=ignored)
        return "/srv/project"

    def environment(self, project: str, python: str) -> str:
        """Installs the project, with what its tests need, for one Python of the folder; returns where it is there."""
        place = f"/srv/venv-{python}"
        pip = f"{place}/bin/pip --disable-pip-version-check install -q"
        self.run(f"{python} -m venv {place} && {pip} '{project}[test]'")
        self.run(f"{pip} --no-deps --force-reinstall {project}")
        return place

    def add_user(self) -> str:
        """Makes an ordinary user of the folder if there is none, and returns the name."""
        self.run(f"id {_USER} > /dev/null 2>&1 || useradd --create-home --shell /bin/bash {_USER}")
        self.run(f"usermod --password '*' {_USER}")  # sshd refuses a locked account, and useradd makes one
        return _USER

    def passes(self, pytest: str, project: str) -> bool:
        """Runs tests in the project, in a network of their own without leftovers; returns whether they pass."""
        script = f"ip link set lo up; cd {project} && {pytest} -p no:cacheprovider"
        try:
            self.run(f"unshare --net sh -c {shlex.quote(script)}", {"CI": "true"})
        except subprocess.CalledProcessError:
            return False
        return True


def parser_for(module: str, description: str) -> argparse.ArgumentParser:
    """Returns the parser of a command that uses Debians in a folder."""
    parser = argparse.ArgumentParser(prog=f"python -m {module}", description=description)
    parser.add_argument("--folder", default="/var/tmp/guild-dask-newer", help="where Debians are, or will be made")
    return parser


def mirror() -> str:
    """Returns the mirror that apt on this machine uses for Debian."""
    command = ["apt-get", "indextargets", "--format", "$(SITE)", "Created-By: Packages", "Origin: Debian"]
    sites = subprocess.run(command, check=True, capture_output=True, text=True).stdout.split()
    if not sites:
        raise SystemExit("apt on this machine has no mirror of Debian; run 'apt-get update' first")
    return sites[0]


def pip_variables() -> dict[str, str]:
    """Returns the configuration of pip on this machine as variables."""
    command = [sys.executable, "-m", "pip", "config", "list"]
    lines = subprocess.run(command, check=True, capture_output=True, text=True).stdout.splitlines()
    found = {}
    for line in lines:
        name, _, value = line.partition("=")
        key = name.rpartition(".")[2]
        found[f"PIP_{key.upper().replace('-', '_')}"] = " ".join(shlex.split(value))
    return found


def _local_paths(values: Iterable[str]) -> Iterator[pathlib.Path]:
    """Yields what the configuration of pip names on this machine; an index is in the folder above its list."""
    if _CERTIFICATES.exists():
        yield _CERTIFICATES
    for value in values:
        for word in value.split():
            path = pathlib.Path(word.removeprefix("file://"))
            if path.is_absolute() and path.exists() and path != _CERTIFICATES:
                yield path.parent if path.name == "simple" else path


def _run(command: Sequence[str], environ: Mapping[str, str] | None = None) -> None:
    subprocess.run(command, env=None if environ is None else {**environ}, check=True, stdin=subprocess.DEVNULL)


def need_root_and_debootstrap() -> None:
    """Ends the program with a message if something is missing."""
    if os.geteuid() != 0 or not shutil.which("debootstrap"):
        raise SystemExit("needs root, and debootstrap ('apt install debootstrap')")
