"""A connection that is closed when a request does not arrive in time, or its answer is not read.

Uvicorn closes connections that are silent between two requests, but neither those that send a header letter by letter
nor those that leave an answer unread.
"""

import asyncio
from typing import Any

import h11
from uvicorn.protocols.http.h11_impl import H11Protocol


def connection_class(header_seconds: float, stall_seconds: float) -> type[H11Protocol]:
    """Uvicorn's connection with a deadline for headers and one for each stop of the client's reading."""

    class Connection(H11Protocol):
        headers_due: asyncio.TimerHandle | None = None
        reading_due: asyncio.TimerHandle | None = None

        def connection_made(self, transport: Any) -> None:
            super().connection_made(transport)
            transport.set_write_buffer_limits(high=0)  # writing is paused as long as anything is left unread
            self._expect_headers()

        def data_received(self, data: bytes) -> None:
            super().data_received(data)
            if self.conn.their_state is h11.IDLE:
                self._expect_headers()
            elif self.headers_due is not None:
                self.headers_due.cancel()
                self.headers_due = None

        def pause_writing(self) -> None:
            super().pause_writing()
            if self.reading_due is None:
                self.reading_due = self.loop.call_later(stall_seconds, self.transport.abort)

        def resume_writing(self) -> None:
            super().resume_writing()
            if self.reading_due is not None:
                self.reading_due.cancel()
                self.reading_due = None

        def connection_lost(self, exc: Exception | None) -> None:
            for timer in (self.headers_due, self.reading_due):
                if timer is not None:
                    timer.cancel()
            super().connection_lost(exc)

        def _expect_headers(self) -> None:
            if self.headers_due is None:
                self.headers_due = self.loop.call_later(header_seconds, self.transport.abort)

    return Connection
