"""Threads that ask the collection, a bounded number at once and a bounded number waiting."""

import asyncio
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any, TypeVar

from starlette.exceptions import HTTPException

from calmrl.server.limits import Limits

T = TypeVar("T")
RETRY_SECONDS = 2


def busy() -> HTTPException:
    """Too much to do; the client may try again."""
    return HTTPException(503, "too many requests are waiting; try again soon", {"Retry-After": str(RETRY_SECONDS)})


class Workers:
    """Runs functions in threads; 503 when too many wait, 504 when one takes too long."""

    def __init__(self, limits: Limits) -> None:
        self.limits = limits
        self.pool = ThreadPoolExecutor(limits.at_once, thread_name_prefix="calmrl-serve")
        self.pending = 0

    async def run(self, function: Callable[..., T], *arguments: Any, **named: Any) -> T:
        """The result of a function, from another thread."""
        if self.pending >= self.limits.at_once + self.limits.waiting:
            raise busy()
        loop = asyncio.get_running_loop()
        self.pending += 1
        future = self.pool.submit(function, *arguments, **named)
        # A thread cannot be stopped: the request counts until its thread is done, even if nobody waits for it.
        future.add_done_callback(lambda done: _tell(loop, self._done, done))
        waited = asyncio.wrap_future(future)
        try:
            return await asyncio.wait_for(waited, self.limits.answer_seconds)
        except asyncio.TimeoutError:
            raise HTTPException(504, f"no answer within {self.limits.answer_seconds:g} s; ask for less") from None

    def _done(self, future: "Future[Any]") -> None:
        self.pending -= 1

    def close(self) -> None:
        """Let running functions end, forget those that wait."""
        self.pool.shutdown(wait=False, cancel_futures=True)


def _tell(loop: asyncio.AbstractEventLoop, function: Callable[..., Any], *arguments: Any) -> None:
    """Call a function in the loop, unless the server has stopped meanwhile."""
    if not loop.is_closed():
        loop.call_soon_threadsafe(function, *arguments)
