"""Every path in the Guild home: Guild's own, as guildai 0.9 has them, and ours under `dask`.

    GUILD_HOME/runs/<run>/.guild/             Guild's records of a run: markers, `attrs/<name>`, `opref`, `output`
    GUILD_HOME/runs/<run>/.guild/dask-attempts/   the attempts at a run that are over
    GUILD_HOME/runs/<scheduler>/run-output/   the output of a scheduler's runs while they run
    GUILD_HOME/runs/<scheduler>/events.jsonl  what happened; beside it, logs, scalars and the report
    GUILD_HOME/runs/<search>/.guild/dask-search.jsonl   what a search proposed and decided
    GUILD_HOME/runs/<search>/.guild/dask-search.lock    is locked by the process that searches
    GUILD_HOME/runs/<search>/<trial>          a link to each trial's run, as Guild's batches have it
    GUILD_HOME/trash/runs/<run>/              a run that was deleted, and can be restored
    GUILD_HOME/dask/claims/                   who takes which run
    GUILD_HOME/dask/schedulers/               heartbeats and states of schedulers
    GUILD_HOME/dask/searches/                 summaries of searches, for the views
    GUILD_HOME/dask/control/                  requests of users to schedulers
    GUILD_HOME/locks/                         Guild's locks

Most paths are texts and not path objects: they are made for tens of thousands of runs. The files of one claim are named
in `claims.py`, and those of one request in `control.py`. What job queues write into the scheduler's run directory is
named in the room `cluster`, which may not import this one; and operations name their own files.
"""

import os
import pathlib

# Guild's markers of a run's status.
STAGED = "STAGED"
PENDING = "PENDING"
LOCK = "LOCK"  # with the pid of the run's process
REMOTE_LOCK = "LOCK.remote"  # with the name of the host that the run is on

# Guild's folder in a run directory, and what it has of a run there.
GUILD_DIR = ".guild"
ATTRIBUTES = "attrs"
OPREF = "opref"

# Our folder beside them.
ATTEMPTS = "dask-attempts"

# How the names of a scheduler's files end: its heartbeat, its state, and the state until all of it is written.
HEARTBEAT = ".json"
STATE = ".state"
STATE_DRAFT = ".state-draft"


def home_in(folder: str) -> str:
    """Returns the Guild home that a user's folder, a project or a virtual environment has."""
    return os.path.join(folder, ".guild")


def runs_dir(home: str) -> str:
    """Returns the folder of run directories."""
    return os.path.join(home, "runs")


def run_dir(home: str, run_id: str) -> str:
    """Returns the directory of a run."""
    return run_in(runs_dir(home), run_id)


def run_in(runs_dir: str, run_id: str) -> str:
    """Returns the directory of a run in a folder of run directories."""
    return f"{runs_dir}/{run_id}"


def run_id(run_dir: str) -> str:
    """Returns the id of the run that a directory is of."""
    return os.path.basename(run_dir)


def runs_dir_of(run_dir: str) -> str:
    """Returns the folder of run directories that a run directory is in."""
    return os.path.dirname(run_dir)


def home_of_run(run_dir: str) -> str:
    """Returns the Guild home that a run directory belongs to."""
    return home_of_runs(runs_dir_of(run_dir))


def home_of_runs(runs_dir: str) -> str:
    """Returns the Guild home that a folder of run directories belongs to."""
    return os.path.dirname(runs_dir)


def trash_dir(home: str) -> str:
    """Returns the folder to which Guild moves deleted run directories, and from which it restores them."""
    return os.path.join(home, "trash", "runs")


def deleted_run_dir(home: str, run_id: str) -> str:
    """Returns the directory of a run that was deleted, and can be restored."""
    return run_in(trash_dir(home), run_id)


def own_folder(home: str) -> pathlib.Path:
    """Returns the folder of what guild-dask keeps in a Guild home."""
    return pathlib.Path(home, "dask")


def claims_folder(home: str) -> pathlib.Path:
    """Returns the folder of claims on runs."""
    return own_folder(home) / "claims"


def home_of_claims(folder: str) -> str:
    """Returns the Guild home that a folder of claims belongs to."""
    return str(pathlib.Path(folder).parent.parent)


def schedulers_folder(home: str) -> pathlib.Path:
    """Returns the folder in which schedulers show that they live, and what they do."""
    return own_folder(home) / "schedulers"


def heartbeat(home: str, scheduler_id: str) -> pathlib.Path:
    """Returns the heartbeat of a scheduler."""
    return schedulers_folder(home) / f"{scheduler_id}{HEARTBEAT}"


def scheduler_state(home: str, scheduler_id: str) -> pathlib.Path:
    """Returns the published state of a scheduler."""
    return schedulers_folder(home) / f"{scheduler_id}{STATE}"


def control_folder(home: str) -> pathlib.Path:
    """Returns the folder of requests to schedulers."""
    return own_folder(home) / "control"


def probe(folder: pathlib.Path, pid: int) -> pathlib.Path:
    """Returns the file that a process writes and removes, to see whether it can write to a folder."""
    return folder / f".guild-dask-doctor-{pid}"


def locks_folder(home: str) -> pathlib.Path:
    """Returns the folder of Guild's locks."""
    return pathlib.Path(home, "locks")


def status_lock(home: str) -> str:
    """Returns the file that Guild locks while the status of runs changes."""
    return os.path.join(home, "locks", "run-status")


def guild_dir(run_dir: str) -> str:
    """Returns the folder of Guild's records of a run."""
    return f"{run_dir}/{GUILD_DIR}"


def marker(run_dir: str, name: str) -> str:
    """Returns the path of one of Guild's markers."""
    return f"{run_dir}/{GUILD_DIR}/{name}"


def opref(run_dir: str) -> str:
    """Returns the file that says of which operation a run is."""
    return f"{run_dir}/{GUILD_DIR}/{OPREF}"


def prototype(run_dir: str) -> str:
    """Returns the directory of the run that a batch starts copies of."""
    return f"{run_dir}/{GUILD_DIR}/proto"


def environment(run_dir: str) -> str:
    """Returns the file with the environment that a run was staged in."""
    return f"{run_dir}/{GUILD_DIR}/ENV"


def output(run_dir: str) -> str:
    """Returns the file with a run's output."""
    return f"{run_dir}/{GUILD_DIR}/output"


def index_of(output: str) -> str:
    """Returns the file that says when each line of an output was printed."""
    return f"{output}.index"


def attributes(run_dir: str) -> str:
    """Returns the folder of a run's attributes."""
    return f"{run_dir}/{GUILD_DIR}/{ATTRIBUTES}"


def attribute(run_dir: str, name: str) -> str:
    """Returns the file of one of a run's attributes."""
    return f"{run_dir}/{GUILD_DIR}/{ATTRIBUTES}/{name}"


def attempts(run_dir: str) -> pathlib.Path:
    """Returns the folder of the attempts at a run that are over."""
    return pathlib.Path(run_dir, GUILD_DIR, ATTEMPTS)


def attempts_record(run_dir: str) -> pathlib.Path:
    """Returns the file that says how the attempts at a run ended."""
    return attempts(run_dir) / "record.json"


def attempt_output(run_dir: str, number: int) -> str:
    """Returns the file with the output of an attempt that is over."""
    return str(attempts(run_dir) / str(number) / os.path.basename(output(run_dir)))


def search_journal(batch_dir: str) -> str:
    """Returns the file in which a search records what it proposes and decides."""
    return f"{batch_dir}/{GUILD_DIR}/dask-search.jsonl"


def search_lock(batch_dir: str) -> str:
    """Returns the file that is locked by the one process that searches for a batch."""
    return f"{batch_dir}/{GUILD_DIR}/dask-search.lock"


def searches_folder(home: str) -> pathlib.Path:
    """Returns the folder in which searches publish what they have found."""
    return own_folder(home) / "searches"


def search_summary(home: str, batch: str) -> pathlib.Path:
    """Returns the file in which a search publishes what it has found."""
    return searches_folder(home) / f"{batch}.json"


def run_output(scheduler_dir: str) -> str:
    """Returns the folder in a scheduler's run directory that has the output of its runs while they run."""
    return f"{scheduler_dir}/run-output"


def output_in(run_output: str, run_id: str) -> str:
    """Returns the file in that folder with the output of one run."""
    return f"{run_output}/{run_id}"


def events(scheduler_dir: str) -> str:
    """Returns the file with the events of a scheduler."""
    return f"{scheduler_dir}/events.jsonl"


def scheduler_log(scheduler_dir: str) -> str:
    """Returns the file with what Dask logs in a scheduler."""
    return f"{scheduler_dir}/dask.log"


def error_log(scheduler_dir: str) -> str:
    """Returns the file with the traceback of a scheduler that failed."""
    return f"{scheduler_dir}/error.log"


def notify_log(scheduler_dir: str) -> str:
    """Returns the file with what the command of the flag `notify` prints."""
    return f"{scheduler_dir}/notify.log"


def scheduler_scalars(scheduler_dir: str) -> str:
    """Returns the folder of TensorBoard's files with a scheduler's own scalars."""
    return f"{scheduler_dir}/scheduler"


def report(scheduler_dir: str) -> str:
    """Returns the report that a scheduler leaves."""
    return f"{scheduler_dir}/report.html"
