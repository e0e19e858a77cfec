"""Models by name: an address or a short name becomes files that are here, whole and right.

`kept` is the way in: a name, and what is told of the way. `catalogue` has the short names, `plan`
says what fetching one would mean, `outline` makes of it what is needed to look at it, `store` knows
what was fetched. All but short names, and what tells a name from a path, is imported when it is
first asked for: a path that is given needs none of it.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from smalti.fetch.catalogue import address, entry, short
from smalti.fetch.names import check_spelling, is_name, located

if TYPE_CHECKING:
    from smalti.fetch.outline import outlined
    from smalti.fetch.planning import FetchPlan, kept, plan
    from smalti.fetch.store import Kept, ModelStore

__all__ = ["FetchPlan", "Kept", "ModelStore", "address", "check_spelling", "entry", "is_name",
           "kept", "located", "outlined", "plan", "short"]

_HOMES = {"FetchPlan": "planning", "kept": "planning", "plan": "planning", "outlined": "outline",
          "Kept": "store", "ModelStore": "store"}


def __getattr__(name: str) -> Any:
    """What is imported later than the package."""
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_HOMES[name]}"), name)
