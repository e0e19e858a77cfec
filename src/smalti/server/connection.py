"""A connection of HTTP whose requests have to come in time, so that nobody holds all of them."""

from __future__ import annotations

import asyncio

import h11
from uvicorn.protocols.http.h11_impl import H11Protocol

HEAD_SECONDS_MAX = 10.0
"""In which the head of a request must have come: it is one packet, most of the time. A connection
that is kept for further requests is closed sooner than that by uvicorn."""


class Connection(H11Protocol):
    """As uvicorn has it, but closed where the head of a request does not come."""

    _late: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """A client has connected."""
        super().connection_made(transport)
        self._watch()

    def data_received(self, data: bytes) -> None:
        """More of a request has come."""
        super().data_received(data)
        self._watch()

    def on_response_complete(self) -> None:
        """A request is answered."""
        super().on_response_complete()
        self._watch()

    def connection_lost(self, exc: Exception | None) -> None:
        """The client has gone."""
        self._rest()
        super().connection_lost(exc)

    def _watch(self) -> None:
        """Wait for the head of a request, from the first moment that it is missing."""
        if self.conn.their_state is not h11.IDLE:
            self._rest()
        elif self._late is None:
            self._late = self.loop.call_later(HEAD_SECONDS_MAX, self.transport.close)

    def _rest(self) -> None:
        if self._late is not None:
            self._late.cancel()
            self._late = None
