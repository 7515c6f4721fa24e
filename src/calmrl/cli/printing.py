"""Where output goes: messages and progress to stderr, data to stdout."""

from __future__ import annotations

import json
import re
import sys
import textwrap
import threading
import time
from collections import deque
from collections.abc import Callable
from datetime import timedelta
from typing import TYPE_CHECKING, Any

from rich.console import Console
from rich.text import Text

from calmrl._support.parsing import visible

if TYPE_CHECKING:
    from rich.status import Status


def stderr_console() -> Console:
    """A console on stderr: no colour without a terminal or with NO_COLOR set, 80 columns without a terminal.

    Brackets are brackets, not markup.
    """
    return Console(stderr=True, highlight=False, markup=False)


OPTIONS = {
    **{name: f"--{name.replace('_', '-')}" for name in (
        *("allow_add", "allow_missing", "data", "engine", "force", "host", "ignore", "index", "layout", "media", "out", "port"),
        *("prune", "relevant_by", "removed", "resume", "root", "smoke"),
    )},
    "encoders": "--encoder",
}  # argument of the library -> option  # fmt: skip
ARGUMENT = re.compile(rf"`({'|'.join(OPTIONS)})(?:=(.+?))?`")


def as_options(text: str) -> str:
    """A message of the library for the command line: `force=True` is --force, `encoders={'a': 'b'}` --encoder a=b."""

    def option(match: re.Match[str]) -> str:
        name, value = OPTIONS[match[1]], match[2]
        if value in (None, "True"):
            return name
        pairs = re.sub(r"['\"{}\[\]]", "", value).replace(": ", "=")
        return f"{name} {pairs}"

    return ARGUMENT.sub(option, text)


def note(text: str) -> None:
    """A message."""
    print(visible(as_options(text)), file=sys.stderr)


def below_table(sentence: str) -> None:
    """A sentence that belongs to the table above it; nothing if it is empty."""
    if sentence:
        note(textwrap.fill(sentence, 80))


def error(text: str) -> None:
    """What went wrong."""
    print(f"calmrl: {visible(as_options(text))}", file=sys.stderr)


def data(text: str) -> None:
    """Text that a program may read, as it is; on a terminal without what would act on it."""
    print((visible(text) if sys.stdout.isatty() else text).rstrip("\n"))


def as_json(value: Any) -> None:
    """A value for a program."""
    print(json.dumps(value, indent=2, default=str))


WINDOW = 20.0  # seconds over which speed is measured,
REPORTS = 10  # and at least so many reports: long pieces differ, and an estimate from one of them jumps
SURE = 2.0  # seconds that an estimate needs
MINUTE = 60.0


class Pace:
    """How fast something goes, from (time, done) of the last seconds.

    The clock starts when the first piece is done, because that piece also pays for loading and warming up.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self.clock = clock
        self.done, self.total = 0, 0
        self._first = 0  # what was done when counting began: a run that resumes does not begin at 0
        self._points: deque[tuple[float, int]] = deque()

    def update(self, done: int, total: int) -> None:
        """So many are done, of so many. Another total, or less than before, begins anew."""
        if total != self.total or done < self.done:
            self._points.clear()
            self._first = done
        self.done, self.total = done, total
        if done > self._first:
            self._points.append((self.clock(), done))
        while len(self._points) > REPORTS and self._points[-1][0] - self._points[1][0] >= WINDOW:
            self._points.popleft()

    def speed(self) -> float | None:
        """Pieces per second; None as long as it is not sure."""
        if len(self._points) < 2:
            return None
        (start, before), (now, done) = self._points[0], self._points[-1]
        return (done - before) / (now - start) if now - start >= SURE else None

    def text(self) -> str:
        """ "30 of 200, 5.0 / s, 0:00:34 left"; empty if the total is not known."""
        if not self.total:
            return ""
        speed = self.speed()
        if speed is None or not speed:
            return f"{self.done} of {self.total}"
        pace = f"{speed:.1f} / s" if speed >= 0.1 else f"{1 / speed:.0f} s each"
        left = f", {timedelta(seconds=round((self.total - self.done) / speed))} left" if self.done < self.total else ""
        return f"{self.done} of {self.total}, {pace}{left}"


class Progress:
    """Shows what is being done while a block runs; it is called as `calmrl.protocols.Progress`.

    Where the total is not known, it shows for how long this has been done.
    Without a terminal it prints a line per minute, also if nothing was reported in it, and nothing for what is quick.
    """

    def __init__(self, *, shown: bool = True, every: float = MINUTE) -> None:
        self.shown, self.every = shown, every
        self.what = "starting"
        self.pace = Pace()
        self._status: Status | None = None
        self._over = threading.Event()
        self._began = self._since = time.monotonic()

    def __enter__(self) -> Progress:
        if self.shown and sys.stderr.isatty():
            self._status = stderr_console().status(self)
            self._status.start()
        elif self.shown:
            threading.Thread(target=self._print_each_minute, daemon=True).start()
        return self

    def __exit__(self, *error: object) -> None:
        self._over.set()
        if self._status is not None:
            self._status.stop()

    def __call__(self, done: int, total: int, what: str) -> None:
        if what != self.what:
            self._since = time.monotonic()
        self.what = what
        self.pace.update(done, total)

    def __rich__(self) -> Text:
        """Drawn again several times a second, so that the time runs where nothing is reported."""
        return Text(self.line())

    def line(self) -> str:
        """What a person sees now."""
        return f"{visible(self.what)}: {self.pace.text() or timedelta(seconds=int(time.monotonic() - self._since))}"

    def _print_each_minute(self) -> None:
        while not self._over.wait(self.every):
            passed = timedelta(seconds=round(time.monotonic() - self._began))
            print(f"{passed} {self.line()}", file=sys.stderr, flush=True)
