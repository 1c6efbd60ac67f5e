"""An HTCondor pool: a head with the collector, the negotiator and the schedd, and hosts with a startd each.

HTCondor does not take jobs from root, so tests need an account (`--account`).
"""

import pathlib
from collections.abc import Mapping

from tests.support.account import as_user, chosen, open_to_user
from tests.support.sandbox import run_command, wait_until
from tests.systems.hosts import Host, Network, clean_environ
from tests.systems.needs import NotAsked, program

_CONFIGURATION = """
RELEASE_DIR = /usr
LOCAL_DIR = {folder}
RUN = $(LOCAL_DIR)/run
LOG = $(LOCAL_DIR)/log
LOCK = $(LOCAL_DIR)/lock
SPOOL = $(LOCAL_DIR)/spool
EXECUTE = $(LOCAL_DIR)/execute
BIN = /usr/bin
SBIN = /usr/sbin
LIB = /usr/lib/condor
LIBEXEC = /usr/libexec/condor
SHARE = /usr/share/condor
CONDOR_HOST = {head}
NETWORK_INTERFACE = {address}
# One file system and one set of users for all hosts: no file is transferred.
UID_DOMAIN = test
FILESYSTEM_DOMAIN = test
TRUST_UID_DOMAIN = True
use SECURITY:HOST_BASED
ALLOW_READ = *
ALLOW_WRITE = *
ALLOW_DAEMON = *
ALLOW_NEGOTIATOR = *
ALLOW_ADMINISTRATOR = *
SEC_DEFAULT_AUTHENTICATION_METHODS = FS, CLAIMTOBE
DAEMON_LIST = {daemons}
NUM_CPUS = 4
MEMORY = 4000
START = True
CGROUP_VERSION =
BASE_CGROUP =
# By default jobs start within minutes.
NEGOTIATOR_INTERVAL = 2
NEGOTIATOR_CYCLE_DELAY = 1
NEGOTIATOR_MIN_INTERVAL = 1
SCHEDD_INTERVAL = 2
SCHEDD_MIN_INTERVAL = 1
UPDATE_INTERVAL = 5
# Seconds between SIGTERM and SIGKILL for a removed job.
MachineMaxVacateTime = 10
"""

_HEAD = "MASTER, COLLECTOR, NEGOTIATOR, SCHEDD"
_NODE = "MASTER, STARTD"

# Seconds for all hosts to join; some on an idle machine.
_STARTED = 150.0

_FOLDERS = ("run", "log", "lock", "spool", "execute")


class HTCondor:
    """A pool that takes jobs on its head."""

    def __init__(self, network: Network, nodes: tuple[str, ...]) -> None:
        if chosen() is None:
            raise NotAsked("HTCondor takes no jobs from root; name an account with --account")
        for name in ("condor_master", "condor_submit", "condor_q"):
            program(name)
        self._state = network.state
        open_to_user(self._state)
        self.head = network.add("head")
        self.hosts = {name: network.add(name) for name in nodes}
        self._start(self.head, _HEAD)
        for host in self.hosts.values():
            self._start(host, _NODE)
        wait_until(lambda: len(self.nodes()) == len(nodes), _STARTED, self._logs)

    @property
    def variables(self) -> Mapping[str, str]:
        """Returns the variables that a user needs for the commands of HTCondor."""
        return {"CONDOR_CONFIG": str(self._file(self.head))}

    def _file(self, host: Host) -> pathlib.Path:
        return self._state / f"{host.name}.config"

    def _start(self, host: Host, daemons: str) -> None:
        folder = self._state / host.name
        for name in _FOLDERS:
            (folder / name).mkdir(parents=True)
        text = _CONFIGURATION.format(folder=folder, head=self.head.name, address=host.address, daemons=daemons)
        self._file(host).write_text(text.lstrip())
        # The user of the package, which the daemons run as.
        host.run(f"chown -R condor: {folder}; {program('condor_master')}", {"CONDOR_CONFIG": str(self._file(host))})

    def nodes(self) -> list[str]:
        """Returns the names of the hosts that take jobs."""
        return self._words("condor_status", "-af", "Machine")

    def jobs(self) -> dict[str, str]:
        """Returns the status of each job that waits, runs or is held, by its number."""
        words = self._words("condor_q", "-allusers", "-af:j", "JobStatus")
        return dict(zip(words[::2], words[1::2], strict=True))

    def command(self, *words: str) -> str:
        """Runs a command of HTCondor on the head, as a user, and returns its output; it must succeed."""
        done = run_command(self.head.command(*as_user(*words)), {**clean_environ(), **self.variables}, "/")
        if done.exit_code != 0:
            raise RuntimeError(str(done))
        return done.output

    def _words(self, *words: str) -> list[str]:
        done = run_command(self.head.command(*words), {**clean_environ(), **self.variables}, "/")
        return done.output.split() if done.exit_code == 0 else []

    def reset(self) -> None:
        """Ends all jobs."""
        self._words(*as_user("condor_rm", "-all"))  # fails if there are no jobs, or if one ends meanwhile
        wait_until(lambda: not self.jobs(), describe=lambda: f"the end of {self.jobs()}")

    def _logs(self) -> str:
        return "\n".join(f"{path}: {path.read_text()[-500:]}" for path in sorted(self._state.glob("*/log/*Log")))
