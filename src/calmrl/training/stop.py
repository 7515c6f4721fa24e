"""Ending in good order: Ctrl-C and the scheduler's SIGTERM ask for a stop after the current step."""

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType


class Interrupted(Exception):
    """Training was asked to stop, and has saved where it was."""


class StopFlag:
    """Whether someone asked to stop."""

    raised = False

    def _ask(self, number: int, frame: FrameType | None) -> None:
        if self.raised and number == signal.SIGINT:
            raise KeyboardInterrupt
        self.raised = True


@contextmanager
def listening() -> Iterator[StopFlag]:
    """Catch SIGINT and SIGTERM for the time of the block (in the main thread); a second Ctrl-C stops at once."""
    flag = StopFlag()
    if threading.current_thread() is not threading.main_thread():
        yield flag
        return
    before = {number: signal.signal(number, flag._ask) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield flag
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
