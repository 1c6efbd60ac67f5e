"""Hosts on one machine: each has its own name, network, processes and boot, and shares the file system.

A host lives as long as its first process, which this module starts. When that process is killed, the kernel ends all
others of the host, like a power failure. It is killed when the process that made the network ends for any reason, so
nothing must be stopped by hand. A host can be disconnected from the network and connected again while it runs.
"""

import contextlib
import ipaddress
import itertools
import json
import os
import pathlib
import shlex
import socket
import subprocess
import sys
import uuid
from collections.abc import Iterator, Mapping

import psutil

from tests.support.sandbox import described, wait_until
from tests.systems.needs import program, root_on_linux

# The networks to choose from, each large enough for this machine and its hosts.
_NETWORKS = ipaddress.ip_network("10.213.0.0/16").subnets(new_prefix=24)

# A host's first process, with its name and its own files: it reports that it has started, and reaps zombies.
_FIRST_PROCESS = """
import os, signal, socket, subprocess, sys
name, boot, names, servers = sys.argv[1:]
socket.sethostname(name)
mounts = {boot: "/proc/sys/kernel/random/boot_id", names: "/etc/hosts", servers: "/etc/resolv.conf"}
# What bash runs when sshd starts it may lock files in the user's home, and a host that is switched off leaves them.
if os.path.exists(os.path.expanduser("~/.bashrc")):
    mounts["/dev/null"] = os.path.expanduser("~/.bashrc")
for file, place in mounts.items():
    subprocess.run(["mount", "--bind", file, place], check=True)
subprocess.run(["ip", "link", "set", "lo", "up"], check=True)
signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGCHLD])
print("there", flush=True)
while signal.sigwait([signal.SIGCHLD]):
    try:
        while os.waitpid(-1, os.WNOHANG) != (0, 0):
            pass
    except ChildProcessError:
        pass
"""


class Host:
    """One host, switched on."""

    def __init__(self, name: str, address: str, network: "Network") -> None:
        self.name = name
        self.address = address
        self._network = network
        self._link = f"{network.bridge}-{address.rpartition('.')[2]}"
        self._switch: subprocess.Popen[str] | None = None

    def switch_on(self) -> None:
        """Boots the host: no process and no connection of an earlier boot is left."""
        boot = self._network.state / f"boot-{self.name}"
        boot.write_text(f"{uuid.uuid4()}\n")
        files = (boot, self._network.names, self._network.servers)
        self._switch = subprocess.Popen(
            [
                *(program("setpriv"), "--pdeathsig", "KILL"),
                *(program("unshare"), "--net", "--uts", "--ipc", "--mount", "--pid", "--fork"),
                *("--kill-child", "--mount-proc"),
                *(sys.executable, "-c", _FIRST_PROCESS, self.name, *map(str, files)),
            ],
            env=clean_environ(),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            text=True,
            start_new_session=True,  # Ctrl-C must not reach it directly
        )
        assert self._switch.stdout is not None
        if self._switch.stdout.readline() != "there\n":
            raise RuntimeError(f"{self.name} does not boot")
        self._plug_in()

    def _plug_in(self) -> None:
        # Always with the same hardware address, which other hosts remember over a reboot.
        card = "02:00:" + ":".join(f"{int(number):02x}" for number in self.address.split("."))
        peer = ("peer", "name", "eth0", "address", card, "netns", str(self.first_process.pid))
        _ip("link", "add", self._link, "type", "veth", *peer)
        _ip("link", "set", self._link, "master", self._network.bridge, "up")
        self.run(f"ip address add {self.address}/24 dev eth0 && ip link set eth0 up")
        # A route to nowhere: programs use the address of the default route as the host's own.
        self.run("ip route add default dev eth0")

    @property
    def first_process(self) -> psutil.Process:
        """Returns the host's first process."""
        assert self._switch is not None
        children: list[psutil.Process] = psutil.Process(self._switch.pid).children()
        return children[0]

    @property
    def is_on(self) -> bool:
        return self._switch is not None and self._switch.poll() is None

    def switch_off(self) -> None:
        """Ends the host and all its processes at once. The other hosts are not notified."""
        if self._switch is not None:
            left = self._all_processes()
            self.cut_off()  # otherwise the kernel would close the connections of the ended processes
            self._switch.kill()  # this ends the first process
            self._switch.communicate()
            wait_until(lambda: not any(map(_lives, left)), describe=lambda: f"the end of\n{described(left)}")
            with contextlib.suppress(RuntimeError):  # the kernel may have removed it already
                _ip("link", "delete", self._link)
            self._switch = None

    def cut_off(self) -> None:
        """Disconnects the host from the network. Its processes continue."""
        _ip("link", "set", self._link, "down")

    def connect(self) -> None:
        """Undoes cut_off."""
        _ip("link", "set", self._link, "up")

    def hide(self, folder: pathlib.Path) -> None:
        """Makes the host see an empty folder at that path, as if a network file system were lost."""
        self.run(f"mount -t tmpfs hidden {folder}")

    def show(self, folder: pathlib.Path) -> None:
        """Undoes hide."""
        self.run(f"umount {folder}")

    def command(self, *words: str) -> list[str]:
        """Returns a command line for this machine that runs the given one on the host, in the current folder."""
        entering = (program("nsenter"), "--target", str(self.first_process.pid))
        there = ("sh", "-c", 'cd "$0" && exec "$@"', os.getcwd())
        return [*entering, "--net", "--uts", "--ipc", "--mount", "--pid", *there, *words]

    def run(self, script: str, environ: Mapping[str, str] | None = None) -> str:
        """Runs a shell script on the host and returns its output; it must succeed."""
        done = subprocess.run(
            self.command("sh", "-ec", script),
            env={**clean_environ(), **(environ or {})},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            check=False,
        )
        if done.returncode != 0:
            raise RuntimeError(f"on {self.name}: {script}\n{done.stdout}<exit {done.returncode}>")
        return done.stdout

    def listening(self) -> list[str]:
        """Returns the addresses on which Python programs listen on the host."""
        lines = self.run("ss --no-header --listening --tcp --udp --numeric --processes").splitlines()
        return [line.split()[4].rpartition(":")[0] for line in lines if '"python' in line]

    def processes(self, word: str = "") -> list[psutil.Process]:
        """Returns the host's processes without the first, as this machine sees them, with a word in the command."""
        found = []
        for process in self._all_processes()[1:]:
            with contextlib.suppress(psutil.Error):
                if word in shlex.join(process.cmdline()):
                    found.append(process)
        return found

    def _all_processes(self) -> list[psutil.Process]:
        """Returns all processes of the host, its first process first."""
        first = self.first_process
        ours = _process_space(first.pid)
        found = [process for process in psutil.process_iter() if _process_space(process.pid) == ours]
        return sorted(found, key=lambda process: process.pid != first.pid)


class Network:
    """Hosts that reach only each other and this machine."""

    def __init__(self, state: pathlib.Path) -> None:
        self.state = state
        self.names = state / "hosts"
        self.servers = state / "resolv.conf"  # empty, so that an unknown name fails at once
        self.servers.touch()
        self.hosts: list[Host] = []
        self.bridge = f"gd{os.getpid() % 100000}{next(_COUNT)}"
        self._subnet = _free_subnet()
        self.address = str(self._subnet[1])  # this machine's
        self.names.write_text(f"127.0.0.1 localhost\n{self.address} {socket.gethostname()}\n")
        _ip("link", "add", self.bridge, "type", "bridge")
        _ip("address", "add", f"{self.address}/24", "dev", self.bridge)
        _ip("link", "set", self.bridge, "up")

    def add(self, name: str) -> Host:
        """Returns a new host, switched on."""
        host = Host(name, str(self._subnet[11 + len(self.hosts)]), self)
        self.hosts.append(host)
        with self.names.open("a") as names:
            names.write(f"{host.address} {name}\n")
        host.switch_on()
        return host

    def host(self, name: str) -> Host:
        """Returns the host of that name."""
        return next(host for host in self.hosts if host.name == name)

    def close(self) -> None:
        """Switches all hosts off, and takes the network down."""
        try:
            for host in self.hosts:
                host.switch_off()
        finally:
            _ip("link", "delete", self.bridge)


_COUNT = itertools.count()


@contextlib.contextmanager
def network(state: pathlib.Path) -> Iterator[Network]:
    """Yields a network without hosts; raises Missing if this machine cannot make one."""
    root_on_linux()
    for name in ("ip", "unshare", "nsenter", "setpriv", "mount"):
        program(name)
    made = Network(state)
    try:
        yield made
    finally:
        made.close()


def _free_subnet() -> ipaddress.IPv4Network:
    taken = [
        ipaddress.ip_address(address["local"])
        for link in json.loads(_ip("-json", "-4", "address"))
        for address in link["addr_info"]
    ]
    return next(net for net in _NETWORKS if not any(address in net for address in taken))  # type: ignore[return-value]


def _lives(process: psutil.Process) -> bool:
    try:
        return bool(process.is_running() and process.status() != psutil.STATUS_ZOMBIE)
    except psutil.NoSuchProcess:
        return False


def _process_space(pid: int) -> str | None:
    try:
        return os.readlink(f"/proc/{pid}/ns/pid")
    except OSError:
        return None  # it has ended


def _ip(*words: str) -> str:
    done = subprocess.run([program("ip"), *words], capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise RuntimeError(f"ip {shlex.join(words)}: {done.stderr}")
    return done.stdout


def clean_environ() -> dict[str, str]:
    """Returns the environment of a host. With a test's environment, its processes would belong to the sandbox."""
    return {"PATH": os.pathsep.join((os.environ.get("PATH", os.defpath), "/usr/sbin", "/sbin")), "LC_ALL": "C"}
