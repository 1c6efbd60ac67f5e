"""Hosts that one can log in to, with an sshd each."""

import pathlib
import subprocess

from support import run_command, wait_until

from systems.hosts import Host, Network, clean_environ
from systems.needs import program

_CONFIGURATION = """
HostKey {keys}/host
AuthorizedKeysFile {keys}/user.pub
PermitRootLogin prohibit-password
PasswordAuthentication no
KbdInteractiveAuthentication no
UsePAM no
StrictModes no
MaxStartups 100
"""

# The folder for privileges is compiled into Debian's sshd; its own service makes it.
_PRIVILEGES = "/run/sshd"


class OpenSSH:
    """Hosts with an sshd each, and a key that opens them."""

    def __init__(self, network: Network, names: tuple[str, ...]) -> None:
        for name in ("sshd", "ssh", "ssh-keygen"):
            program(name)
        self.network = network
        self._keys = network.state / "keys"
        self._keys.mkdir(mode=0o700)
        for key in ("host", "user"):
            subprocess.run(
                [program("ssh-keygen"), "-q", "-t", "ed25519", "-N", "", "-f", str(self._keys / key)], check=True
            )
        (self._keys / "sshd_config").write_text(_CONFIGURATION.format(keys=self._keys))
        self.hosts = {name: network.add(name) for name in names}
        for host in self.hosts.values():
            self.start_host(host)

    def start_host(self, host: Host) -> None:
        """Starts sshd on a host that is switched on, and waits until one can log in."""
        host.run(f"mkdir -p {_PRIVILEGES}; {program('sshd')} -f {self._keys}/sshd_config -o PidFile=none")
        home = self.network.state / "home"
        self.write_user_files(home)
        command = ["ssh", "-F", str(home / ".ssh" / "config"), "-o", "ConnectTimeout=2", host.name, "hostname"]
        wait_until(
            lambda: run_command(command, clean_environ(), "/").output.strip() == host.name,
            describe=lambda: run_command(command, clean_environ(), "/"),
        )

    def write_user_files(self, home: pathlib.Path) -> None:
        """Lets a user with that home log in without a question, to a host by its name or address."""
        folder = home / ".ssh"
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        public = (self._keys / "host.pub").read_text().strip()
        hosts = self.hosts.values()
        known = [f"{host.name},{host.address} {public}\n" for host in hosts]
        (folder / "known_hosts").write_text("".join(known))
        entries = [
            f"Host {host.name} {host.address}\n  HostName {host.address}\n  User root\n"
            f"  IdentityFile {self._keys}/user\n  UserKnownHostsFile {folder}/known_hosts\n"
            for host in hosts
        ]
        (folder / "config").write_text("".join(entries))

    def reset(self) -> None:
        """Has all hosts as they were at the beginning, with nothing running on them but sshd."""
        for host in self.hosts.values():
            host.switch_off()
            host.switch_on()
            self.start_host(host)
