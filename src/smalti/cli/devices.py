"""`smalti devices`: what programs can run on."""

from __future__ import annotations

import click

import smalti
from smalti.cli.interrupt import ending_at_once


@click.command()
def devices() -> None:
    """List the devices that programs can run on."""
    with ending_at_once():
        find = smalti.devices
    for device in find():
        click.echo(f"{device.id}  {device.name}  ({device.kind}, "
                   f"{device.memory_bytes / 2**30:.1f} GiB)")
        click.echo(f"    {' '.join(device.features) or 'no features'}")
