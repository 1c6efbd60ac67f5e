"""Hosts with an sshd each, and a head host with a user who can log in to them."""

import shlex
import subprocess

from tests.support import account
from tests.support.sandbox import wait_until
from tests.systems.hosts import Host, Network
from tests.systems.needs import program

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

# The folder is compiled into Debian's sshd, and usually made by its service.
_PRIVILEGES = "/run/sshd"


class OpenSSH:
    """Hosts with an sshd each, and a key for them."""

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
        self.head = network.add("head")
        self.hosts = {name: network.add(name) for name in names}
        self._move_in()
        for host in self.hosts.values():
            self.start_host(host)

    def _move_in(self) -> None:
        """Gives the user a home with a key on the head, by /etc/passwd: ssh ignores the variable HOME."""
        account.open_to_user(self.network.state)
        account.open_to_user(self._keys)
        home = self.network.state / "home"
        folder = home / ".ssh"
        folder.mkdir(mode=0o700, parents=True)
        public = (self._keys / "host.pub").read_text().strip()
        known = [f"{host.name},{host.address} {public}\n" for host in self.hosts.values()]
        (folder / "known_hosts").write_text("".join(known))
        (folder / "config").write_text(f"Host *\n  IdentityFile {self._keys}/user\n")
        account.give(self._keys / "user", home, folder, folder / "known_hosts", folder / "config")
        users = self.network.state / "passwd"
        lines = [f"root:x:0:0:root:{home}:/bin/sh", "sshd:x:100:65534::/run/sshd:/usr/sbin/nologin"]
        user = account.chosen()
        lines += [f"{user.name}:x:{user.uid}:{user.gid}::{home}:/bin/sh"] if user else []
        users.write_text("\n".join([*lines, ""]))
        self.head.run(f"mount --bind {users} /etc/passwd")

    def start_host(self, host: Host) -> None:
        """Starts sshd on a running host, and waits until a login works."""
        host.run(f"mkdir -p {_PRIVILEGES}; {program('sshd')} -f {self._keys}/sshd_config -o PidFile=none")
        login = f"ssh -o ConnectTimeout=2 {host.name} hostname || true"
        login = shlex.join(account.as_user("sh", "-c", login))
        wait_until(lambda: self.head.run(login).strip() == host.name, describe=lambda: self.head.run(login))

    def reset(self) -> None:
        """Restores the initial state of all hosts, which run sshd only. Does not touch the head."""
        for host in self.hosts.values():
            host.switch_off()
            host.switch_on()
            self.start_host(host)
