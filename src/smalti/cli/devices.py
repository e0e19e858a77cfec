"""`smalti devices`: what programs can run on, and what the timing model knows of it."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

import smalti
from smalti.cli.interrupt import loading_modules

if TYPE_CHECKING:
    from smalti.machine import DeviceModel


@click.command()
@click.argument("name", required=False)
@click.option("--check", is_flag=True,
              help="Run every form of kernel on each device, or on the one that is named, and "
                   "compare it with numpy.")
def devices(name: str | None, check: bool) -> None:
    """List the devices that programs can run on.

    With the NAME of a GPU or CPU that need not be here, show what the timing model knows of it.
    """
    if check:
        check_all([name] if name is not None else [each.id for each in smalti.devices()])
        return
    with loading_modules():
        from smalti import machine
        from smalti.runtime.devices import absences
        from smalti.runtime.drivers import driver_of
    if name is not None:
        click.echo(record(machine.device(name)))
        return
    for device in smalti.devices():
        click.echo(f"{device.id}  {device.name}  ({device.kind}, "
                   f"{device.memory_bytes / 2**30:.1f} GiB)")
        click.echo(f"    {' '.join(device.features) or 'no features'}")
        driver = driver_of(device.id)
        if (model := driver.model(device)) is not None:
            click.echo(record(model))
        for title, what in driver.about(device):
            click.echo(f"    {title:<12}{what}")
        for removal in device.removals:
            click.echo(f"    {'not used':<12}{removal.what}: {removal.why} {removal.instead}")
    for text in absences():
        click.echo(text)


def check_all(names: list[str]) -> None:
    """Check devices one after the other, and print what came of it.

    Raises VerificationError, naming devices, where a kernel computes something else than it means.
    """
    wrong = []
    for name in names:
        for report in smalti.check_device(name):
            click.echo(report)
            wrong += [] if report.ok else [report.title]
    if wrong:
        raise smalti.VerificationError(f"kernels compute something else than they mean: "
                                       f"{'; '.join(wrong)}; tell Smalti's developers, with the "
                                       f"version of the driver")


def record(device: DeviceModel) -> str:
    """A device of the timing model, a figure a line, and where each comes from."""
    figures = [("units", f"{device.units}", "units"),
               ("clock", f"{device.clock / 1e9:.2f} GHz", "clock")]
    for what, rates in (("vector", device.vector), ("matrix", device.matrix)):
        figures += [(f"{what} {dtype}", f"{rate / 1e9:.0f} GFLOP/s", what)
                    for dtype, rate in rates.items()]
    figures += [(cache.name, f"{cache.bytes / 2**20:g} MiB, {cache.bandwidth / 1e9:.0f} GB/s",
                 f"{cache.name}_bandwidth") for cache in device.caches]
    figures += [("memory", f"{device.memory / 1e9:.1f} GB, {device.bandwidth / 1e9:.0f} GB/s",
                 "bandwidth"), ("launch", f"{1e6 * device.launch:.2f} us", "launch"),
                ("power", f"{device.watts:g} W", "watts")]
    return "\n".join(f"    {label:<12}{text:<28}{device.origin.get(field, '')}".rstrip()
                     for label, text, field in figures)
