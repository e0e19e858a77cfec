"""Which replica makes a picture: one that has its model, unless it is waited for too long.

A replica is a process with a device of its own, which makes one picture at a time and keeps the
models that it has loaded. So that no model is loaded where it need not be, a picture whose model
some replicas have waits for one of these, as long as loading the model takes at most; then for any
that is free, those first that have loaded least. What replicas have is known by what was sent to
them.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Collection, Sequence
from dataclasses import field
from itertools import groupby

from smalti.dataclass import dataclass

PATIENCE_SECONDS = 20.0
"""For a replica that has the model: about what 10 GB take to load (0.5 GB a second)."""


@dataclass
class Routing:
    """The models of each replica, of which it keeps the last `kept`.

    >>> routing = Routing(kept=2)
    >>> routing.sent("one", "sdxl")
    >>> both = ["one", "two"]
    >>> routing.order(both, "sdxl", waited=0.0), routing.order(both, "sdxl", waited=60.0)
    ([['one']], [['one'], ['two']])
    >>> routing.order(both, "flux", waited=0.0)
    [['two'], ['one']]
    """

    kept: int
    patience_seconds: float = PATIENCE_SECONDS
    _models: dict[str, OrderedDict[str, None]] = field(default_factory=dict)

    def order(self, replicas: Sequence[str], model: str, waited: float) -> list[list[str]]:
        """Groups of replicas, of which one is to be asked only if none before it is free."""
        having = [each for each in replicas if model in self.models(each)]
        if having and waited < self.patience_seconds:
            return [having]
        others = sorted((each for each in replicas if each not in having), key=self._load)
        return [*([having] if having else []),
                *([*group] for _, group in groupby(others, key=self._load))]

    def sent(self, replica: str, model: str) -> None:
        """A picture was given to a replica, which has its model from now on."""
        models = self._models.setdefault(replica, OrderedDict())
        models[model] = None
        models.move_to_end(model)
        while len(models) > self.kept:
            models.popitem(last=False)

    def alive(self, replicas: Collection[str]) -> None:
        """All others have ended, and what they had with them."""
        for each in self._models.keys() - set(replicas):
            del self._models[each]

    def models(self, replica: str) -> Collection[str]:
        """What a replica has."""
        return self._models.get(replica, {}).keys()

    def _load(self, replica: str) -> int:
        return len(self.models(replica))
