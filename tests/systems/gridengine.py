"""A Grid Engine on one host, which is master, node and submit host.

It enforces the time limit of a job to the second; Slurm rounds it to minutes.
"""

import os
import pathlib
import shutil
from collections.abc import Mapping
from xml.etree import ElementTree

from tests.support.sandbox import run_command, wait_until
from tests.systems.hosts import Network, clean_environ
from tests.systems.needs import Missing, program

_INSTALLED = pathlib.Path("/var/lib/gridengine")
_SHARED = pathlib.Path("/usr/share/gridengine")
_NAME = "grid"
_SLOTS = 8
_GPUS = 4

_BOOTSTRAP = """
admin_user root
default_domain none
ignore_fqdn false
spooling_method berkeleydb
spooling_lib libspoolb
spooling_params {state}/spool
binary_path /usr/sbin
qmaster_spool_dir {state}/qmaster
security_mode none
listener_threads 2
worker_threads 2
scheduler_threads 1
"""

_EXECUTION_HOST = f"""
hostname {_NAME}
load_scaling NONE
complex_values gpu={_GPUS},slots={_SLOTS}
user_lists NONE
xuser_lists NONE
projects NONE
xprojects NONE
usage_scaling NONE
report_variables NONE
"""

_PARALLEL = f"""
pe_name smp
slots {_SLOTS}
user_lists NONE
xuser_lists NONE
start_proc_args NONE
stop_proc_args NONE
allocation_rule $pe_slots
control_slaves FALSE
job_is_first_task TRUE
urgency_slots min
accounting_summary FALSE
qsort_args NONE
"""

# Changes to Grid Engine's defaults.
_GLOBAL = {
    "min_uid": "0",  # root may submit
    "min_gid": "0",
    "load_report_time": "00:00:05",
    "max_unheard": "00:00:30",
    "mailer": "/bin/true",
}
_SCHEDULER = {
    "schedule_interval": "0:0:1",
    "flush_submit_sec": "1",
    "flush_finish_sec": "1",
    "load_formula": "slots",
}
_QUEUE = {
    "qname": "main",
    "hostlist": _NAME,
    "slots": str(_SLOTS),
    "pe_list": "smp",
    "load_thresholds": "NONE",
    "shell": "/bin/bash",
    "notify": "00:00:05",
}
_GPU = {"name": "gpu", "shortcut": "gpu", "default": "0", "urgency": "0"}


class GridEngine:
    """A Grid Engine that takes jobs from its own host."""

    def __init__(self, network: Network) -> None:
        for name in ("sge_qmaster", "sge_execd", "qsub", "qconf"):
            program(name)
        if not _INSTALLED.is_dir():
            raise Missing(f"there is no {_INSTALLED}")
        self._state = network.state
        self.host = network.add(_NAME)
        self._write_cell()
        self.host.run(program("sge_qmaster"), self.variables)
        wait_until(lambda: self._answers("qconf -sh"), describe=self._messages)
        self._configure()
        self.host.run(program("sge_execd"), self.variables)
        wait_until(self._takes_jobs, describe=self._messages)

    @property
    def variables(self) -> Mapping[str, str]:
        """Returns the variables that a user needs for the commands of Grid Engine."""
        return {
            "SGE_ROOT": str(self._state / "root"),
            "SGE_CELL": "test",
            "SGE_QMASTER_PORT": "6444",  # the host has its own network, so the port is free
            "SGE_EXECD_PORT": "6445",
        }

    def command(self, script: str) -> str:
        """Runs a shell script on the host and returns its output; it must succeed."""
        return self.host.run(script, self.variables)

    def jobs(self) -> dict[str, str]:
        """Returns the state of each job that waits or runs, by its number."""
        found = ElementTree.fromstring(self.command("qstat -xml -u '*'")).iter("job_list")
        return {job.findtext("JB_job_number", ""): job.findtext("state", "") for job in found}

    def reset(self) -> None:
        """Ends all jobs."""
        if self.jobs():
            self.command("qdel -f -u '*' || true")  # it fails if they have ended meanwhile
        wait_until(lambda: not self.jobs(), describe=lambda: f"the end of {self.jobs()}")

    def _write_cell(self) -> None:
        common = self._state / "root" / "test" / "common"
        common.mkdir(parents=True)
        for name in ("spool", "qmaster", "execd", "given"):
            (self._state / name).mkdir()
        for name in ("bin", "lib", "utilbin"):
            shutil.copytree(_INSTALLED / name, self._state / "root" / name, symlinks=True)
        (self._state / "root" / "util").symlink_to(_SHARED / "util")
        (common / "bootstrap").write_text(_BOOTSTRAP.format(state=self._state).lstrip())
        (common / "act_qmaster").write_text(f"{_NAME}\n")
        (common / "host_aliases").write_text(f"{_NAME} localhost\n")
        resources = self._state / "given" / "resources"
        shutil.copytree(_SHARED / "util" / "resources" / "centry", resources)
        (resources / "gpu").write_text(_changed((resources / "slots").read_text(), _GPU))
        settings = {**_GLOBAL, "execd_spool_dir": f"{self._state}/execd"}
        configuration = self._state / "given" / "global"
        configuration.write_text(_changed((_SHARED / "default-configuration").read_text(), settings))
        self.command(
            f"cd /usr/lib/gridengine; ./spoolinit berkeleydb libspoolb {self._state}/spool init;"
            f"./spooldefaults configuration {configuration}; ./spooldefaults complexes {resources};"
            f"./spooldefaults usersets {_SHARED}/util/resources/usersets; ./spooldefaults managers root"
        )

    def _configure(self) -> None:
        self.command(f"qconf -ah {_NAME} || true; qconf -as {_NAME}")
        self._give("-Ae", _EXECUTION_HOST.lstrip())
        self._give("-Msconf", _changed(self.command("qconf -ssconf"), _SCHEDULER))
        self._give("-Ap", _PARALLEL.lstrip())
        self._give("-Aq", _changed(self.command("qconf -sq"), _QUEUE))

    def _give(self, option: str, text: str) -> None:
        file = self._state / "given" / option.lstrip("-")
        file.write_text(text)
        self.command(f"qconf {option} {file}")

    def _answers(self, script: str) -> bool:
        return run_command(self.host.command("sh", "-ec", script), {**clean_environ(), **self.variables}, "/")[1] == 0

    def _takes_jobs(self) -> bool:
        """Returns whether the queue has no error, alarm or unknown state (all are letters after the load)."""
        lines = [line.split() for line in self.command("qstat -f").splitlines() if line.startswith("main@")]
        return bool(lines) and all(len(words) == 5 and words[3] != "-NA-" for words in lines)

    def _messages(self) -> str:
        return "\n".join(f"{path}:\n{path.read_text()[-1000:]}" for path in self._state.rglob("messages"))


def _changed(text: str, changes: Mapping[str, str]) -> str:
    """Returns a text of lines `NAME VALUE` with some values replaced."""
    lines = []
    for line in text.splitlines():
        name = line.partition(" ")[0].partition("\t")[0]
        lines.append(f"{name} {changes[name]}" if name in changes else line)
    return os.linesep.join([*lines, ""])
