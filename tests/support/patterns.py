"""Staged runs as copies of a run that Guild has staged: hundreds of them in the time of one `guild run --stage`."""

import os
import pathlib
import shutil
from collections.abc import Mapping, Sequence

import yaml
from guild import run as guild_run


class Pattern:
    """A run that Guild has staged, moved out of the Guild home; its copies are staged runs with other ids."""

    def __init__(self, run_dir: pathlib.Path, folder: pathlib.Path) -> None:
        """Moves a staged run into a folder, which must be on the file system of the Guild home."""
        self._runs = run_dir.parent
        self._run_id = run_dir.name
        self._folder = folder
        os.rename(run_dir, folder / self._run_id)

    def stage(
        self, run_id: str, tags: Sequence[str] | None = None, replaced: Mapping[str, str] | None = None
    ) -> pathlib.Path:
        """Stages a copy, with other tags and texts if they are given. Its directory appears complete."""
        draft = self._folder / f"draft-{run_id}"
        shutil.copytree(self._folder / self._run_id, draft, symlinks=True)
        for file in (draft / ".guild").rglob("*"):
            if file.is_file():
                text = file.read_text()
                for old, new in {**(replaced or {}), self._run_id: run_id}.items():
                    text = text.replace(old, new)
                file.write_text(text)
        attributes = draft / ".guild" / "attrs"
        (attributes / "started").write_text(f"{guild_run.timestamp()}\n")
        (attributes / "id").write_text(f"{run_id}\n")
        if tags is not None:
            (attributes / "tags").write_text(yaml.safe_dump(list(tags)))
        os.rename(draft, self._runs / run_id)
        return self._runs / run_id
