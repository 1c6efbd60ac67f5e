"""The command lines of the operations, created from the flags that dask.yml declares."""

import pathlib
from collections.abc import Callable
from typing import Any, TypeVar

import click
import yaml

F = TypeVar("F", bound=Callable[..., Any])


# Flags of the scheduler that its trials' search does not have: it decides itself what to start, and when to end.
_NOT_FOR_SEARCHES = ("filter", "run-once", "fail", "dry-run")

SCHEDULER = "scheduler"


def definition() -> Any:
    """Returns Guild's model with its operations: the content of dask.yml, and the scheduler's flags for optimizers."""
    model = yaml.safe_load(pathlib.Path(__file__).parent.with_name("dask.yml").read_text(encoding="utf-8"))
    operations = model["operations"]
    shared = {name: each for name, each in operations[SCHEDULER]["flags"].items() if name not in _NOT_FOR_SEARCHES}
    for name, operation in operations.items():
        if name != SCHEDULER:
            operation["flags"] = {**operation["flags"], **shared}
    return model


def flags(operation: str = SCHEDULER) -> dict[str, Any]:
    """Returns the flags of an operation as dask.yml declares them."""
    declared: dict[str, Any] = definition()["operations"][operation]["flags"]
    return declared


def options_for_flags(operation: str = SCHEDULER) -> Callable[[F], F]:
    """Returns what adds an option for each flag to a command. Options are text, which `readers` converts."""

    def add(function: F) -> F:
        for name, flag in reversed(flags(operation).items()):
            text = f"{flag['description'].strip()} [default: {flag['null-label']}]"
            function = click.option(f"--{name}", metavar="VALUE", help=text)(function)
        return function

    return add
