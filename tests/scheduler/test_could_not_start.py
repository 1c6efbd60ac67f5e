"""A run that had completed, is staged again, and cannot be started any more."""

from tests.support.sandbox import Guild, Sandbox
from tests.support.scheduling import NO_DASHBOARD, a_project, stage, statuses

GUILD_FILE = """
quick:
  exec: echo quick
  requires: {file: data.txt, always-resolve: yes}
after:
  exec: echo after
"""


def test_run_that_could_not_start_does_not_have_the_end_of_its_former_attempt(user: Sandbox, guild: Guild) -> None:
    project = a_project(user, GUILD_FILE, {"data.txt": "1\n"})
    scheduler = f"run dask:scheduler workers=1 run-once=yes {NO_DASHBOARD} -y"
    stage(guild, "quick", "aaa")
    guild(scheduler)
    assert statuses(user) == {"aaa": "completed"}
    guild("run --restart aaa --stage -y")
    (project / "data.txt").unlink()
    (user.guild_home / "runs" / "aaa" / "data.txt").unlink()
    stage(guild, "after", "bbb", options="--tag dask-after:aaa")
    output = guild(scheduler).output
    assert "Run aaa could not be started" in output
    assert "Leaving run bbb staged (run aaa, which it comes after, " in output
    assert statuses(user) == {"aaa": "error", "bbb": "staged"}
