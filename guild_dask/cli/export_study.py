"""`guild-dask export-study`: a search as a journal that Optuna and its dashboard can open."""

import os
import shlex
import tempfile

import click

from guild_dask.cli import best, common


@click.command("export-study")
@best.batch_argument(required=True)
@click.argument("file", type=click.Path(dir_okay=False))
def command(batch: str, file: str) -> None:
    """Write the search BATCH to FILE, as a study of Optuna's.

    FILE is a journal of Optuna's JournalStorage, and must not exist. `optuna-dashboard FILE` shows it. Trials that
    wait are left out; those that users stopped are failed ones there. The attribute guild_run of a trial is its run.
    """
    from guild_dask.scheduler.search import study
    from guild_dask.scheduler.search.engine import EngineMissing

    if os.path.lexists(file):
        common.fail(f"{file} exists already; a journal is not overwritten")
    search, found = best.found_search(batch, with_curves=True)
    try:
        # Optuna makes files beside the journal.
        with tempfile.TemporaryDirectory(prefix=".export-study-", dir=os.path.dirname(file) or ".") as folder:
            draft = os.path.join(folder, "journal")
            count = study.write_journal(search, found, draft)
            os.rename(draft, file)
    except (study.CannotExport, EngineMissing) as e:
        common.fail(str(e))
    except OSError as e:
        common.fail(f"cannot write {file}: {e.strerror or e}")
    click.echo(f"Wrote {count} trial(s) to {file}; optuna-dashboard {shlex.quote(file)} shows them")
