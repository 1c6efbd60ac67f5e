"""A search beside the loop of its own scheduler: which runs that scheduler starts."""

import pathlib

from guild_dask.home.listing import Listing
from guild_dask.home.run_directory import Staged
from guild_dask.scheduler.search.guest import SearchGuest, Steps


def test_own_trials_are_taken_although_their_records_cannot_be_read_now(tmp_path: pathlib.Path) -> None:
    # A listing has a run once: one that is left out would wait for ever.
    def make(_width: object) -> Steps:
        raise AssertionError("it has not begun")

    guest = SearchGuest("batch", {"mine"}.__contains__, make, lambda _cluster: 1, lambda: None)
    mine, other = (Staged(name, str(tmp_path / name), 0, ()) for name in ("mine", "other"))
    found = guest.select(Listing((mine, other), {"broken": "it has no time of staging"}, frozenset()))
    assert (found.staged, found.broken) == ((mine,), {})
