"""`smalti inspect`: what a model file is."""

from __future__ import annotations

import click

from smalti.cli.interrupt import ending_at_once


@click.command()
@click.argument("file")
def inspect(file: str) -> None:
    """Say what the model FILE (or diffusers folder) is, without reading its weights."""
    with ending_at_once():
        from smalti import checkpoint

    click.echo(checkpoint.inspect(file))
