"""The plugin that Guild discovers: the model `dask` with the scheduler and the optimizers, which dask.yml describes.

Guild imports this module in many of its commands, so it imports nothing heavy: Dask is loaded by the operation's own
process. If this module cannot be imported, Guild silently falls back to its built-in scheduler.
"""

import os
from typing import Any

from guild import guildfile, model, plugin

from guild_dask import __version__

# Guild's names of the operations, and ours.
OPERATIONS = {f"dask:{name}": name for name in ("scheduler", "tpe", "random", "gp")}


class DaskModel:
    """Guild's model proxy for `dask`, with the operations of dask.yml."""

    name = "dask"

    def __init__(self) -> None:
        from guild_dask.settings import flags

        self.modeldef = guildfile.Guildfile([flags.definition()], src=f"<{self.__class__.__name__}>").models[self.name]
        # With "builtin", Guild shows the operation as `dask:scheduler`, and can restart a scheduler.
        self.reference = model.ModelRef("builtin", "guild-dask", __version__, self.name)


class DaskSchedulerPlugin(plugin.Plugin):  # type: ignore[misc]  # Guild has no types
    """Resolves `dask:scheduler`, before the scheduler that is part of guildai, and the optimizers."""

    # Guild calls plugins in the order of this number; its own dask plugin has 100.
    resolve_model_op_priority = 90

    def resolve_model_op(self, opspec: str) -> tuple[DaskModel, str] | None:
        name = OPERATIONS.get(opspec)
        if name:
            from guild_dask.host import environment

            environment.open_missing_streams()  # Guild fails without them
        return (DaskModel(), name) if name else None

    def enabled_for_op(self, opdef: Any) -> tuple[bool, str]:
        if opdef.opref.to_opspec() in OPERATIONS:
            return True, "operation is a Dask scheduler, or may be one"
        return False, "not a Dask scheduler"

    def run_starting(self, _run: Any, _op: Any, pidfile: str | None) -> None:
        """Leaves Ctrl-C in a terminal to the scheduler, which drains at the first one; Guild would kill it."""
        from guild_dask.host import environment, signals

        if pidfile is None and environment.terminal_variable():
            signals.leave_interrupts_to_child()

    def apply_cmd_env(self, op: Any, cmd_env: dict[str, str]) -> None:
        """Passes on the variables of the user's shell that Guild overrides, and the terminal that Guild prints to."""
        from guild_dask.host import environment

        cmd_env.update(environment.overridden_variables(os.environ))
        cmd_env.update(environment.terminal_variable())
        cmd_env.update(environment.interrupts_variable())
