"""`smalti doctor`: whether a GPU and its driver compute what they should."""

from __future__ import annotations

import platform
import textwrap
from typing import TYPE_CHECKING

import click

import smalti
from smalti.cli.generate import show_progress
from smalti.cli.interrupt import loading_modules

if TYPE_CHECKING:
    from smalti.runtime.device import Device
    from smalti.runtime.doctor.found import GpuRates
    from smalti.runtime.doctor.verdict import Verdict

WIDTH = 100  # columns that what is said is wrapped to


@click.command()
@click.option("--device", default=None, metavar="ID",
              help="One of `smalti devices`, such as vulkan:0. Default: every GPU.")
@click.option("--again", is_flag=True, help="Check it even though that was done before.")
@click.option("--report", is_flag=True,
              help="Print all that was found as text for an issue. It names no files or users.")
def doctor(device: str | None, again: bool, report: bool) -> None:
    """Check that a GPU and its driver compute what they should.

    Takes some seconds. What a driver gets wrong is not used from then on, and is done in another
    way; nothing else changes. Each GPU is checked by itself when it is used first; a new driver, or
    a new version of Smalti, is checked anew.
    """
    with loading_modules():
        from smalti.runtime.devices import absences
        from smalti.runtime.doctor.checking import checkable, checked
    found = checkable(device)
    if not found:
        click.echo("There is no GPU here that Smalti can use. The CPU needs no check.")
        for text in absences():
            click.echo(text)
    for each in found:
        verdict = checked(each, again, show_progress)
        show_progress("")
        click.echo(reported(each, verdict) if report else shown(each, verdict))


def shown(device: Device, verdict: Verdict) -> str:
    """What was found, for the user of the device."""
    lines = [f"{device.id}  {device.name}  ({device.driver})"]
    if verdict.unfinished:
        return "\n".join([*lines, *wrapped(
            f"The check could not be finished: {verdict.unfinished}. Nothing was decided; the next "
            f"use of the device, or `smalti doctor`, tries again.")])
    tried = f"{verdict.probes} things were tried in {verdict.seconds:.1f} s, on {verdict.date}."
    if verdict.findings:
        lines += wrapped(f"{tried} Not all of them work:")
        for removal in verdict.removals:
            lines += wrapped(f"* {removal.why} {removal.instead}", "      ")
    else:
        lines += wrapped(f"{tried} All of them work.")
    for removal in device.removals:
        if removal.what not in {each.what for each in verdict.removals} | set(verdict.proven):
            lines += wrapped(f"Known of this driver: {removal.why} {removal.instead} "
                             f"({removal.source})", "      ")
    if verdict.rates is not None:
        lines += [f"    {what:<28}{rate:>16}" for what, rate in rates(verdict.rates)]
    if verdict.findings:
        lines += wrapped("`smalti doctor --report` prints this for an issue.")
    return "\n".join(lines)


def wrapped(text: str, further: str = "    ") -> list[str]:
    """Text as lines of the terminal."""
    return textwrap.wrap(text, WIDTH, initial_indent="    ", subsequent_indent=further,
                         break_long_words=False, break_on_hyphens=False)


def rates(found: GpuRates) -> list[tuple[str, str]]:
    """What was measured, line by line."""
    lines = [(f"products, {precision}", f"{rate / 1e9:,.3g} GFLOP/s" if rate < 1e12 else
              f"{rate / 1e12:,.3g} TFLOP/s")
             for precision, rate in found.products.items()]
    return [*lines, ("reads and writes memory", f"{found.memory / 1e9:,.1f} GB/s"),
            ("from launch to launch", f"{1e6 * found.launch:,.1f} us"),
            ("a run of one launch", f"{1e6 * found.submission:,.0f} us"),
            ("copies to the device", f"{found.upload / 1e9:,.1f} GB/s"),
            ("copies from the device", f"{found.download / 1e9:,.1f} GB/s")]


def reported(device: Device, verdict: Verdict) -> str:
    """What was found, as Markdown that says all that a developer asks for, and nothing of whose
    computer it is."""
    from smalti.runtime.doctor.verdict import path_of, without_places

    facts = [("Smalti", smalti.__version__), ("code", verdict.code[:12]),
             ("system", f"{platform.system()} {platform.release()}, {platform.machine()}, Python "
                        f"{platform.python_version()}"),
             ("device", f"{device.name} ({device.kind}, {device.id})"),
             ("driver", without_places(device.driver)),
             ("verdict", path_of(device.identity).stem[:12]),
             ("memory", f"{device.memory_bytes / 2**30:.1f} GiB"),
             ("features", " ".join(device.features) or "none"),
             ("matrices", ", ".join(device.matrices) or "none"),
             ("checked", f"{verdict.date}, {verdict.probes} probes in {verdict.seconds} s")]
    if verdict.unfinished:
        facts.append(("unfinished", verdict.unfinished))
    if verdict.rates is not None:
        facts += rates(verdict.rates)
    lines = ["### smalti doctor", "", "| what | found |", "| --- | --- |",
             *(f"| {what} | {text} |" for what, text in facts), ""]
    lines += [f"* **{finding.probe}**: {finding.trouble}; removed: {', '.join(finding.removed)}"
              for finding in verdict.findings] or ["* every probe is right"]
    lines += [f"* known of this driver: {removal}" for removal in device.removals
              if removal.what not in {each.what for each in verdict.removals}]
    return "\n".join(lines)
