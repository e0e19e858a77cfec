"""`smalti models`: models by name, before, while and after they are fetched."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from smalti.cli.generate import show_progress
from smalti.cli.interrupt import loading_modules
from smalti.errors import FetchError

if TYPE_CHECKING:
    from smalti.fetch import Kept, ModelStore

LIMIT = 20
"""Models of the hub and of civitai that a search lists."""


@click.group()
def models() -> None:
    """Find, fetch, check and delete models by name.

    A name is hf:OWNER/NAME, hf:OWNER/NAME@REVISION:FILE, civitai:MODEL@VERSION, an https: address
    with #sha256=HASH, or a short name, which `smalti models search` lists.
    """


@models.command("list")
def list_() -> None:
    """What was fetched: names, sizes, kinds, and where it is."""
    with loading_modules():
        from smalti.fetch import ModelStore, short
        from smalti.fetch.sizes import shown_bytes
    found = [*ModelStore().all()]
    for kept in found:
        click.echo(f"{short(kept.name):40} {shown_bytes(kept.bytes):>9}  {kept.kind}\n"
                   f"    {kept.path}")
    total = sum({file.path: file.bytes for kept in found for file in kept.files}.values())
    click.echo(f"{len(found)} models, {shown_bytes(total)}" if found else
               "nothing was fetched yet; smalti models search lists what there is")


@models.command()
@click.argument("words", nargs=-1)
@click.option("--hub", is_flag=True, help="Search the Hugging Face hub, too.")
@click.option("--civitai", is_flag=True, help="Search civitai, too.")
def search(words: tuple[str, ...], hub: bool, civitai: bool) -> None:
    """Short names of models with all WORDS in them; all of them without WORDS."""
    with loading_modules():
        from smalti.fetch import catalogue
        from smalti.fetch import civitai as civitai_
        from smalti.fetch import hub as hub_
        from smalti.fetch.sizes import shown_bytes
    text, lines = " ".join(words), []
    for entry in catalogue.search(text):
        size = "" if entry.bytes is None else f", {shown_bytes(entry.bytes)}"
        accept = ", to be accepted" if entry.accept else ""
        lines.append((entry.name, f"{entry.title} ({entry.kind}{size}; {entry.licence}{accept})"))
    if (hub or civitai) and not text:
        raise FetchError("a search of the hub or of civitai needs words to look for")
    lines += hub_.search(text, LIMIT) if hub else []
    lines += civitai_.search(text, LIMIT) if civitai else []
    for name, told in lines:
        click.echo(f"{name:28} {told}")
    if not lines:
        click.echo(f"nothing in the catalogue has {text!r}; --hub and --civitai search there")


@models.command()
@click.argument("names", nargs=-1, required=True)
@click.option("--memory", default=None, metavar="SIZE",
              help="What the model has to fit in, such as 6GB. Default: what this computer has.")
@click.option("--dry-run", is_flag=True, help="Say what would be fetched, and fetch nothing.")
def get(names: tuple[str, ...], memory: str | None, dry_run: bool) -> None:
    """Fetch models by their NAMES, with what the catalogue says that they need.

    What is here of it is not fetched again; what was fetched by the name of a branch is looked for
    anew. Ctrl-C stops it, and the next attempt goes on from there.
    """
    with loading_modules():
        from smalti.fetch import ModelStore, plan, short
        from smalti.fetch.planning import check_rooms, together
    store, room = ModelStore(), _budget(memory)
    wanted = dict.fromkeys(each for name in names for each in _addresses(name))
    plans = [plan(each, room, store) for each in wanted]
    for each in plans:
        click.echo(str(each))
    if len(plans) > 1:
        click.echo(together(plans))
    if dry_run:
        return
    check_rooms(plans)
    for each in plans:
        kept = each.fetch(show_progress)
        show_progress("")
        click.echo(f"{short(kept.name)}: {kept.path}")


def _budget(memory: str | None) -> int:
    """Bytes that a model has to fit in."""
    from smalti.diffusion.load_options import LoadOptions
    from smalti.diffusion.named import budget
    from smalti.diffusion.request import memory_bytes

    if memory is not None:
        return memory_bytes(memory)
    asked = LoadOptions()
    return budget(asked, asked.placement.of("denoiser"))


def _addresses(name: str) -> list[str]:
    """What is to be fetched for a name: it, and what it needs."""
    from smalti import fetch
    from smalti.fetch.catalogue import needed

    address = fetch.address(name)
    if address is None:
        fetch.check_spelling(name)
        raise FetchError(f"{name!r:.200} is no name of a model; expected hf:OWNER/NAME, "
                         f"civitai:MODEL, an https: address with #sha256=HASH, or a short name "
                         f"(smalti models search)")
    entry = fetch.entry(name)
    return [address, *(each.source for each in ([] if entry is None else needed(entry)))]


@models.command()
@click.argument("names", nargs=-1, required=True)
def remove(names: tuple[str, ...]) -> None:
    """Delete models that were fetched, but for files that others share."""
    with loading_modules():
        from smalti.fetch import ModelStore, short
        from smalti.fetch.sizes import shown_bytes
    store = ModelStore()
    for kept in [_fetched(name, store) for name in names]:
        freed = store.remove(kept)
        click.echo(f"{short(kept.name)} is deleted, {shown_bytes(freed)} are free")


@models.command()
@click.argument("names", nargs=-1)
def verify(names: tuple[str, ...]) -> None:
    """Read models that were fetched, all without NAMES, and compare them with their hashes.

    Ends with exit code 2 where one is not what it was.
    """
    with loading_modules():
        from smalti.fetch import ModelStore, short
    store, wrong = ModelStore(), []
    for kept in [_fetched(name, store) for name in names] or [*store.all()]:
        show_progress(f"reading {kept.name}")
        problems = kept.problems(thorough=True)
        show_progress("")
        click.echo(f"{short(kept.name)}: " + ("; ".join(problems) or
                                               f"{len(kept.files)} files are right"))
        wrong += [short(kept.name)] if problems else []
    if wrong:
        raise FetchError(f"not what was fetched: {', '.join(wrong)}; have it again with: smalti "
                         f"models get {' '.join(wrong)}")


def _fetched(name: str, store: ModelStore) -> Kept:
    """A model that was fetched, by its name. Raises FetchError."""
    from smalti import fetch
    from smalti.fetch import short

    found = store.found(fetch.address(name) or name)
    if found is None:
        known = ", ".join(short(kept.name) for kept in store.all()) or "none"
        raise FetchError(f"{name!r:.200} was not fetched; what was: {known}")
    return found
