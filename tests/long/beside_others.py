"""Which version pip takes of packages that people use beside guild-dask: alone, and together with it.

    python -m tests.long.beside_others [PACKAGE...]

Needs a network. Nothing is installed: pip reports what it would install in an empty environment. The last table is in
docs/compatibility.md. The exit code is 1 if pip finds no solution with guild-dask, or takes another version than with
guildai alone, which requires an old protobuf.
"""

import argparse
import json
import pathlib
import shutil
import subprocess
import sys
import tempfile
from dataclasses import dataclass

from tests.support.sandbox import PROJECT

PACKAGES = (
    "mlflow",
    "wandb",
    "ray",
    "optuna",
    "transformers",
    "jupyterlab",
    "hydra-core",
    "huggingface-hub",
    "dvc",
    "prefect",
    "streamlit",
)

_HEAD = """
Python {python}

| package | alone | with guildai | with guild-dask | other differences |
| --- | --- | --- | --- | --- |
""".strip()

# The release that guild-dask mends.
GUILD = "guildai==0.9.0"


@dataclass(frozen=True)
class Beside:
    """The versions of one package; None if pip finds no solution."""

    package: str
    alone: str | None
    with_us: str | None
    with_guild: str | None  # together with guildai, and without guild-dask
    held_back: tuple[str, ...] = ()  # other packages of which pip takes another version because of us

    @property
    def is_as_good(self) -> bool:
        """Returns whether guild-dask takes nothing from the user that guildai does not take."""
        return self.with_us is not None and self.with_us == self.with_guild

    def __str__(self) -> str:
        others = ", ".join(self.held_back) or "-"
        return f"| {self.package} | {self.alone} | {self.with_guild} | {self.with_us} | {others} |"


def main(arguments: list[str] | None = None) -> int:
    """Prints the table; returns 1 if a package is held back."""
    parser = argparse.ArgumentParser(prog="python -m tests.long.beside_others", description="Asks pip.")
    parser.add_argument("package", nargs="*", default=PACKAGES)
    options = parser.parse_args(arguments)
    print(_HEAD.format(python=".".join(map(str, sys.version_info[:2]))))  # noqa: T201
    found = []
    with tempfile.TemporaryDirectory(prefix="beside-") as scratch:
        source = pathlib.Path(scratch) / "guild-dask"
        shutil.copytree(PROJECT, source, ignore=shutil.ignore_patterns(".*", "build", "*.egg-info", "__pycache__"))
        for package in options.package:
            found.append(beside(package, str(source)))
            print(found[-1], flush=True)  # noqa: T201
    return int(not all(each.is_as_good for each in found))


def beside(package: str, source: str) -> Beside:
    """Returns what pip takes of a package and of what it requires, without and with a source of guild-dask."""
    alone, with_us = resolved(package), resolved(package, source)
    other = sorted(name for name in alone.keys() & with_us.keys() - {package} if alone[name] != with_us[name])
    texts = tuple(f"{name} {alone[name]} -> {with_us[name]}" for name in other)
    with_guild = alone if with_us.get(package) == alone.get(package) else resolved(package, GUILD)
    return Beside(package, alone.get(package), with_us.get(package), with_guild.get(package), texts)


def resolved(*requirements: str) -> dict[str, str]:
    """Returns the versions that pip would install in an empty environment, by name; empty if it finds no solution."""
    pip = [sys.executable, "-m", "pip", "--disable-pip-version-check", "--quiet", "install"]
    options = ["--dry-run", "--ignore-installed", "--report", "-"]
    done = subprocess.run([*pip, *options, *requirements], capture_output=True, text=True, check=False)
    if done.returncode != 0:
        print(done.stderr, file=sys.stderr)  # noqa: T201
        return {}
    installed = [item["metadata"] for item in json.loads(done.stdout)["install"]]
    return {item["name"].lower().replace("_", "-"): item["version"] for item in installed}


if __name__ == "__main__":
    raise SystemExit(main())
