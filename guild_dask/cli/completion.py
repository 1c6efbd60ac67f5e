"""`guild-dask completion`: a shell script that completes commands, options and run ids."""

import click
from click.shell_completion import get_completion_class

from guild_dask.cli import common


@click.command("completion")
@click.argument("shell", type=click.Choice(["bash", "zsh", "fish"]))
@click.pass_context
def command(ctx: click.Context, shell: str) -> None:
    """Print a completion script for a shell.

    \b
    bash: add to ~/.bashrc:  eval "$(guild-dask completion bash)"
    zsh:  add to ~/.zshrc:   eval "$(guild-dask completion zsh)"
    fish: run:  guild-dask completion fish > ~/.config/fish/completions/guild-dask.fish
    """
    found = get_completion_class(shell)
    if found is None:
        common.fail(f"no completion for {shell}")
    click.echo(found(ctx.find_root().command, {}, "guild-dask", "_GUILD_DASK_COMPLETE").source())
