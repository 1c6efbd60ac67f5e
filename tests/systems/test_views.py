"""The views of runs on workers in other processes, where the page has a port of its own."""

import json
import os
import urllib.request
from typing import Any

from tests.support.sandbox import Guild, Sandbox, run_command, wait_until
from tests.support.scheduling import stage
from tests.systems.dask_processes import dask_processes
from tests.systems.journal import Journal


def told(command: str) -> Any:
    return json.loads(run_command(f"guild-dask {command} --json", os.environ, os.getcwd()).output)


def test_runs_on_an_existing_cluster_are_seen(user: Sandbox, guild: Guild, journal: Journal) -> None:
    with dask_processes(user) as cluster:
        cluster.start_worker("large", "--resources GPU=2")
        stage(guild, "work seconds=60", "aaa", "bbb", options="--tag dask:GPU=1")
        command = f"run dask:scheduler cluster={cluster.address} dashboard-address=0 poll-interval=0.5 --run-id sss -y"
        with guild.started(command) as scheduler:
            journal.wait_for("aaa")

            def with_running() -> Any:
                found = told("status")["schedulers"]
                return found[0] if found and found[0].get("running") else None

            state = wait_until(with_running, describe=scheduler.so_far)
            assert [run["worker"] for run in state["running"]] == ["large"], "its name for people"
            assert [worker["used"] for worker in state["workers"]] == [{"GPU": 1.0}]
            assert state["page"].startswith("http://127.0.0.1:")

            def rows() -> dict[str, str]:
                with urllib.request.urlopen(state["page"].replace("/guild?", "/guild/data?")) as answer:
                    return {row["run"]: row["state"] for row in json.load(answer)["rows"]}

            wait_until(lambda: rows() == {"aaa": "running", "bbb": "waiting"}, describe=rows)
            assert "stop requested" in run_command("guild-dask stop aaa", os.environ, os.getcwd()).output
            wait_until(lambda: rows() == {"aaa": "terminated", "bbb": "running"}, describe=rows)
