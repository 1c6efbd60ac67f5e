"""What Guild discovers: the model `dask` with the operation `scheduler`, which is described by dask.yml.

Guild imports this module at many of its commands, so it imports nothing heavy; Dask is loaded by the operation's own
process. If this module fails to import, Guild silently falls back to its built-in scheduler.
"""

import os
from typing import Any

from guild import guildfile, model, plugin

from guild_dask import __version__, guild_compatibility

guild_compatibility.mend()

OPERATION = "dask:scheduler"


class DaskModel:
    """Guild's model proxy for `dask`, with the operations of dask.yml."""

    name = "dask"

    def __init__(self) -> None:
        from guild_dask.settings import flags

        self.modeldef = guildfile.Guildfile([flags.definition()], src=f"<{self.__class__.__name__}>").models[self.name]
        # "builtin" is what makes Guild show the operation as `dask:scheduler` and lets a scheduler be restarted.
        self.reference = model.ModelRef("builtin", "guild-dask", __version__, self.name)


class DaskSchedulerPlugin(plugin.Plugin):  # type: ignore[misc]  # Guild has no types
    """Resolves `dask:scheduler` ahead of the scheduler that guildai itself has."""

    # Guild asks plugins in this order; its own dask plugin has 100.
    resolve_model_op_priority = 90

    def resolve_model_op(self, opspec: str) -> tuple[DaskModel, str] | None:
        if opspec == OPERATION:
            return DaskModel(), "scheduler"
        return None

    def enabled_for_op(self, opdef: Any) -> tuple[bool, str]:
        if opdef.opref.to_opspec() == OPERATION:
            return True, "operation is a Dask scheduler"
        return False, "not a Dask scheduler"

    def apply_cmd_env(self, op: Any, cmd_env: dict[str, str]) -> None:
        """Tells the scheduler which variables of the user's shell Guild covers with its own, and where Guild prints."""
        from guild_dask.host import environment

        cmd_env.update(environment.overridden_variables(os.environ))
        cmd_env.update(environment.terminal_variable())
