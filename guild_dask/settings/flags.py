"""The command line of the operation, created from the flags that dask.yml declares."""

import pathlib
from collections.abc import Callable
from typing import Any, TypeVar

import click
import yaml

F = TypeVar("F", bound=Callable[..., Any])


def definition() -> Any:
    """Returns the content of dask.yml: Guild's model with its operation."""
    return yaml.safe_load(pathlib.Path(__file__).parent.with_name("dask.yml").read_text(encoding="utf-8"))


def flags() -> dict[str, Any]:
    """Returns the flags of the operation as dask.yml declares them."""
    declared: dict[str, Any] = definition()["operations"]["scheduler"]["flags"]
    return declared


def options_for_flags(function: F) -> F:
    """Adds an option for each flag to a command. Options are text, which `readers` converts."""
    for name, flag in reversed(flags().items()):
        text = f"{flag['description'].strip()} [default: {flag['null-label']}]"
        function = click.option(f"--{name}", metavar="VALUE", help=text)(function)
    return function
