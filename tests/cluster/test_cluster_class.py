"""Any of Dask's cluster classes, named as package.module:Class: opened, used and closed."""

from tests.support.sandbox import Guild, Sandbox
from tests.support.scheduling import NO_DASHBOARD, a_project, stage, statuses

QUICK = """
quick:
  exec: echo "ran on a worker"
"""


def test_cluster_of_any_class_gets_runs_and_is_closed_at_the_end(user: Sandbox, guild: Guild) -> None:
    a_project(user, QUICK)
    stage(guild, "quick", "aaa", "bbb")
    command = f"run dask:scheduler cluster=distributed:LocalCluster workers=2 run-once=yes {NO_DASHBOARD} -y"
    finished = guild(command)
    assert finished.exit_code == 0, finished
    assert finished.output.count("ran on a worker") == 2
    assert "Worker 0 on" in finished.output, "a worker's name may be a number"
    assert "Traceback" not in finished.output
    assert statuses(user) == {"aaa": "completed", "bbb": "completed"}
    assert not list((user.guild_home / "dask" / "claims").iterdir())
