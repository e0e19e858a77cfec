"""What is given where a model is expected: a path, or a name by which it is fetched.

Every model that is opened passes through here, so that nothing is imported that speaks with servers
before there is a name.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from smalti.errors import FetchError
from smalti.fetch import catalogue


def is_name(given: object) -> bool:
    """Whether what is given is a name, and no path of something that is there."""
    return isinstance(given, str) and catalogue.address(given) is not None \
        and not Path(given).exists()


def check_spelling(given: object) -> None:
    """Raise FetchError for what is no file that is here, and nearly the name of a model."""
    if isinstance(given, str) and not is_name(given) and not Path(given).exists():
        near = catalogue.near(given)
        if near:
            raise FetchError(f"{given} is neither a file that is here nor the name of a model; did "
                             f"you mean {' or '.join(near)}?")


def located(given: str | Path, memory: int | None, tell: Callable[[str], None]) -> str | Path:
    """The path of what is given: itself, or that of the model that it is the name of, which is
    fetched where it is not here. Raises FetchError."""
    address = catalogue.address(given) if isinstance(given, str) and is_name(given) else None
    if address is None:
        return given
    from smalti.fetch.planning import kept

    return Path(kept(address, memory, tell).path)
