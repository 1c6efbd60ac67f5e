"""`guild-dask completion`: what makes a shell complete commands, options and runs."""

import click
from click.shell_completion import get_completion_class

from guild_dask.cli import common


@click.command("completion")
@click.argument("shell", type=click.Choice(["bash", "zsh", "fish"]))
@click.pass_context
def command(ctx: click.Context, shell: str) -> None:
    """Print what makes SHELL complete `guild-dask`.

    Put it where your shell reads it when it starts: `eval "$(guild-dask completion bash)"` in ~/.bashrc, the same with
    zsh in ~/.zshrc, and for fish `guild-dask completion fish > ~/.config/fish/completions/guild-dask.fish`.
    """
    found = get_completion_class(shell)
    if found is None:
        common.fail(f"no completion for {shell}")
    click.echo(found(ctx.find_root().command, {}, "guild-dask", "_GUILD_DASK_COMPLETE").source())
