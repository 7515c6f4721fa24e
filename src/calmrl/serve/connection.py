"""A connection that is closed when the headers of a request do not arrive in time.

Uvicorn closes connections that are silent between two requests, not those that send a header letter by letter.
"""

import asyncio
from typing import Any

import h11
from uvicorn.protocols.http.h11_impl import H11Protocol


def connection_class(header_seconds: float) -> type[H11Protocol]:
    """Uvicorn's connection with a deadline for headers."""

    class Connection(H11Protocol):
        deadline: asyncio.TimerHandle | None = None

        def connection_made(self, transport: Any) -> None:
            super().connection_made(transport)
            self._start()

        def data_received(self, data: bytes) -> None:
            super().data_received(data)
            if self.conn.their_state is h11.IDLE:
                self._start()
            else:
                self._stop()

        def connection_lost(self, exc: Exception | None) -> None:
            self._stop()
            super().connection_lost(exc)

        def _start(self) -> None:
            if self.deadline is None:
                self.deadline = self.loop.call_later(header_seconds, self.transport.close)

        def _stop(self) -> None:
            if self.deadline is not None:
                self.deadline.cancel()
                self.deadline = None

    return Connection
