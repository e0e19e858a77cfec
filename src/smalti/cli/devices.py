"""`smalti devices`: what programs can run on."""

from __future__ import annotations

import click

import smalti


@click.command()
def devices() -> None:
    """List the devices that programs can run on."""
    for device in smalti.devices():
        click.echo(f"{device.id}  {device.name}  ({device.kind}, "
                   f"{device.memory_bytes / 2**30:.1f} GiB)")
        click.echo(f"    {' '.join(device.features) or 'no features'}")
