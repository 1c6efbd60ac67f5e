"""The operation `dask:scheduler`: reads its flags, and runs a scheduler."""

import gc
import os
import queue
import sys

import click

from guild_dask.scheduler import own_run, service
from guild_dask.scheduler.events import OutsideEvent
from guild_dask.scheduler.service import BAD_SETTING
from guild_dask.settings import flags
from guild_dask.settings.settings import BadSetting, Settings, section_of, settings_for


@click.command(context_settings={"help_option_names": ["-h", "--help"]})
@flags.options_for_flags()
def main(**flags: str | None) -> None:
    """Run staged runs in parallel on a Dask cluster. Guild runs this as `guild run dask:scheduler`."""
    gc.disable()  # what is imported now is never garbage; collecting would take a tenth of the start
    events: queue.SimpleQueue[OutsideEvent] = queue.SimpleQueue()
    # Before the heavy imports, so that a stop in the first second is handled, too.
    is_stopping = service.report_signals(events)
    own_run.this_run().mark_as_batch()
    service.begin_to_load_guild(flags["cluster"])
    try:
        from guild_dask.cluster import (
            dask_settings,
            opening,  # noqa: F401  # loads all of Dask
        )
        from guild_dask.cluster.base import ClusterError
    except ValueError as e:  # Dask reads its configuration when it is imported
        click.echo(f"dask:scheduler: {e}", err=True)
        sys.exit(BAD_SETTING)
    section, unknown = section_of(dask_settings.configuration())
    try:
        settings = settings_for({name.replace("_", "-"): text for name, text in flags.items()}, section)
        code = _show(settings) if settings.dry_run else service.run(settings, unknown, events, is_stopping)
    except (BadSetting, ClusterError) as e:
        click.echo(f"dask:scheduler: {e}", err=True)
        code = BAD_SETTING
    gc.freeze()  # else Python would collect all imported modules once more before it exits
    sys.exit(code)


def _show(settings: Settings) -> int:
    """Shows what would be submitted, and returns the exit code."""
    from guild_dask.cluster import opening
    from guild_dask.host import environment

    user = environment.user_environment(os.environ)
    click.echo(opening.dry_run(settings, own_run.this_run().dir, user))
    return 0


if __name__ == "__main__":
    main()
