"""An OAR: a head with PostgreSQL and OAR's server, where jobs are submitted, and hosts with OAR's sshd.

OAR does not take jobs from root, so tests need an account (`--account`). Its commands read one fixed file, on which the
hosts have another one mounted. Jobs are not confined to their cores, which would need cgroups.
"""

import pathlib
import re
from collections.abc import Mapping

from tests.support.account import as_user, chosen, open_to_user
from tests.support.sandbox import run_command, wait_until
from tests.systems.hosts import Host, Network, clean_environ
from tests.systems.needs import Missing, NotAsked, program

_INSTALLED = pathlib.Path("/etc/oar/oar.conf")
_POSTGRESQL = pathlib.Path("/usr/lib/postgresql")
_CORES = 2

# Changes to Debian's file.
_SETTINGS = {
    "DB_HOSTNAME": "127.0.0.1",
    "DB_BASE_PASSWD": "oar",
    "DB_BASE_PASSWD_RO": "oar_ro",
    "SERVER_HOSTNAME": "head",
    "LOG_LEVEL": "3",
    "FINAUD_FREQUENCY": "0",  # no check of the hosts
    "SCHEDULER_JOB_SECURITY_TIME": "1",
}
# Without it, a job is a plain process on its host.
_LEFT_OUT = ("JOB_RESOURCE_MANAGER_PROPERTY_DB_FIELD",)

# Seconds for all hosts to be seen; some on an idle machine.
_STARTED = 150.0


class OAR:
    """An OAR that takes jobs on its head."""

    def __init__(self, network: Network, nodes: tuple[str, ...]) -> None:
        if chosen() is None:
            raise NotAsked("OAR takes no jobs from root; name an account with --account")
        for name in ("oarsub", "oar-server", "oar-database", "sshd"):
            program(name)
        if not _POSTGRESQL.is_dir():
            raise Missing("there is no PostgreSQL on this machine")
        self._state = network.state
        open_to_user(self._state)
        self.head = network.add("head")
        self.hosts = {name: network.add(name) for name in nodes}
        self._write_files()
        for host in (self.head, *self.hosts.values()):
            self._mount(host)
        self._start_database()
        for host in self.hosts.values():
            host.run(f"{program('sshd')} -f /etc/oar/sshd_config -o PidFile=none -o StrictModes=no")
        self._add_nodes()
        self.head.run(program("oar-server"))
        wait_until(lambda: self.states() == ["Alive"] * _CORES * len(nodes), _STARTED, self._log)

    def _write_files(self) -> None:
        lines = []
        for line in _INSTALLED.read_text().splitlines():
            name = line.partition("=")[0]
            if name not in _LEFT_OUT:
                lines.append(f'{name}="{_SETTINGS[name]}"' if name in _SETTINGS else line)
        (self._state / "oar.conf").write_text("\n".join([*lines, ""]))
        (self._state / "oar.log").touch()
        (self._state / "database").mkdir()

    def _mount(self, host: Host) -> None:
        files = {"oar.conf": _INSTALLED, "oar.log": pathlib.Path("/var/log/oar.log")}
        for name, place in files.items():
            host.run(f"touch {place}; chown oar: {self._state / name}; mount --bind {self._state / name} {place}")
        for folder, owner in {"/run/postgresql": "postgres", "/run/sshd": "root", "/run/oar": "oar"}.items():
            host.run(f"mkdir -p {folder}; mount -t tmpfs own {folder}; chown {owner}: {folder}; chmod 755 {folder}")

    def _start_database(self) -> None:
        (newest,) = sorted(_POSTGRESQL.iterdir())[-1:]
        folder = self._state / "database"
        as_postgres = "setpriv --reuid postgres --regid postgres --clear-groups"
        self.head.run(f"chown postgres: {folder}; cd /; {as_postgres} {newest}/bin/initdb -A trust -D {folder}")
        options = "-c listen_addresses=127.0.0.1 -c unix_socket_directories=/run/postgresql -c fsync=off"
        start = f'{newest}/bin/pg_ctl -D {folder} -l {folder}/log -o "{options}" -w start'
        self.head.run(f"cd /; {as_postgres} {start} > /dev/null 2>&1 < /dev/null")
        self.head.run(f"{program('oar-database')} --create --db-is-local")

    def _add_nodes(self) -> None:
        self.head.run(f"{program('oarproperty')} -c -a core")
        number = 0
        for name in self.hosts:
            for _ in range(_CORES):
                number += 1  # of the core in the whole cluster
                self.head.run(f"{program('oarnodesetting')} -a -h {name} -p core={number}")

    def states(self) -> list[str]:
        """Returns the state of each core."""
        done = run_command(self.head.command("oarnodes"), clean_environ(), "/")
        return re.findall(r"^state: (\w+)", done.output, re.MULTILINE)

    @property
    def variables(self) -> Mapping[str, str]:
        """Returns the variables that a user needs for the commands of OAR."""
        return {}

    def jobs(self) -> dict[str, str]:
        """Returns the state of each job that waits or runs, by its number."""
        done = run_command(self.head.command("oarstat"), clean_environ(), "/")
        return dict(re.findall(r"^(\d+) +(\w) ", done.output, re.MULTILINE))

    def command(self, *words: str) -> str:
        """Runs a command of OAR on the head, as a user, and returns its output; it must succeed."""
        done = run_command(self.head.command(*as_user(*words)), clean_environ(), "/")
        if done.exit_code != 0:
            raise RuntimeError(str(done))
        return done.output

    def reset(self) -> None:
        """Ends all jobs."""
        if left := self.jobs():
            # Not command(): oardel fails for a job that it has been asked to delete before.
            run_command(self.head.command(*as_user("oardel", *left)), clean_environ(), "/")
        wait_until(lambda: not self.jobs(), describe=lambda: f"the end of {self.jobs()}\n{self._log()}")

    def _log(self) -> str:
        return f"{self.states()}\n{(self._state / 'oar.log').read_text()[-3000:]}"
