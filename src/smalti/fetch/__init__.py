"""Models by name: an address or a short name becomes files that are here, whole and right.

`kept` is the way in: a name, and what is told of the way. `catalogue` has the short names, `plan`
says what fetching one would mean, `outline` makes of it what is needed to look at it, `store` knows
what was fetched.
"""

from smalti.fetch.catalogue import address, entry, short
from smalti.fetch.outline import outlined
from smalti.fetch.plan import FetchPlan, check_spelling, is_name, kept, located, plan
from smalti.fetch.store import Kept, ModelStore

__all__ = ["FetchPlan", "Kept", "ModelStore", "address", "check_spelling", "entry", "is_name",
           "kept", "located", "outlined", "plan", "short"]
