"""The options of `smalti generate` that decide the picture, made of their record."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

import click

from smalti.cli.interrupt import loading_modules
from smalti.errors import InputError

SIZE = re.compile(r"(\d{1,9})(?:[xX](\d{1,9}))?")
OWN = ("prompt", "height", "controls")
"""Options that are an argument, a part of another one, or given by several."""


class PictureCommand(click.Command):
    """A command with an option for each of `PictureOptions`; what is not given is
    None. They are read when they are first asked for, so that other commands start at once."""

    _params: list[click.Parameter]
    _complete: bool

    @property
    def params(self) -> list[click.Parameter]:
        """The options of its own, then those of the picture."""
        if not self._complete:
            with loading_modules():
                from smalti.diffusion.options import by_group
            self._complete = True
            self._params += [
                click.Option([*flags(each), each.name], default=None, help=help_of(each),
                             metavar=each.metavar, **_typed(each))
                for each in by_group() if each.name not in OWN]
        return self._params

    @params.setter
    def params(self, own: list[click.Parameter]) -> None:
        self._params, self._complete = own, False


def flags(option: Any) -> tuple[str, ...]:
    """The names of an option on the command line.

    >>> from smalti.diffusion.options import OPTIONS
    >>> flags(OPTIONS["clip_skip"]), flags(OPTIONS["batch_size"])
    (('--clip-skip',), ('--batch',))
    """
    return option.flags or (f"--{option.name.replace('_', '-')}",)


def help_of(option: Any) -> str:
    """What an option is for, and what it is where it is not given."""
    return f"{option.help}  [default: {option.told}]" if option.told else option.help


def _typed(option: Any) -> dict[str, Any]:
    """How click reads the values of an option."""
    from smalti.diffusion import kinds

    kind = option.kind
    if isinstance(kind, kinds.FlagKind | kinds.ProjectionKind):
        return {"is_flag": True, "flag_value": True, "type": bool}
    if isinstance(kind, kinds.OpenedKind) and kind.several:
        return {"multiple": True, "type": str}
    if isinstance(kind, kinds.RowKind):
        return {"nargs": len(kind.names), "type": _number(kind.each)}
    if isinstance(kind, kinds.WholeKind | kinds.NumberKind) and option.name != "width":
        return {"type": _number(kind)}
    return {"type": str}


def _number(kind: Any) -> type:
    from smalti.diffusion import kinds

    return int if isinstance(kind, kinds.WholeKind) else float


def asked_for(given: Mapping[str, Any]) -> dict[str, Any]:
    """The options of a picture that were given, as `PictureOptions` takes them."""
    from smalti.diffusion.kinds import NumbersKind
    from smalti.diffusion.options import OPTIONS

    found = {name: value for name, value in given.items() if value not in (None, ())}
    if len(found.get("image", ())) == 1:
        (found["image"],) = found["image"]
    if "width" in found:
        found["width"], found["height"] = parse_size(found["width"])
    for name, kind in ((each.name, each.kind) for each in OPTIONS.values()):
        if name in found and isinstance(kind, NumbersKind):
            try:
                found[name] = kind.read(found[name])
            except ValueError as error:
                raise InputError(f"{flags(OPTIONS[name])[0]} is {found[name]!r}; expected {error}"
                                 ) from None
    return found


def parse_size(text: str | None) -> tuple[int | None, int | None]:
    """Width and height in pixels from `512` or `512x768`; None stays for the model to decide.

    >>> parse_size("512"), parse_size("512x768"), parse_size(None)
    ((512, 512), (512, 768), (None, None))
    """
    if text is None:
        return None, None
    found = SIZE.fullmatch(text)
    if not found:
        raise InputError(f"--size is {text!r}; expected WIDTH or WIDTHxHEIGHT in pixels, "
                         f"such as 512 or 512x768")
    return int(found[1]), int(found[2] or found[1])
