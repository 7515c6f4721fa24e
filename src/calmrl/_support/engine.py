"""Where work on many blocks is done: in this process, or on a cluster. One call, `map`, is all that differs."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import Any, Protocol

from calmrl._support.registry import Registry
from calmrl.errors import InputError


class Engine(Protocol):
    """Applies a function to items; results come in the order of the items, whatever order they were finished in."""

    name: str
    workers: int  # items that are worked on at the same time

    def map(
        self, function: Callable[..., Any], items: Iterable[Any], *shared: Any, device: str = "cpu"
    ) -> Iterator[Any]:
        """function(item, *shared) for every item; `shared` is sent to a worker once, not with every item.

        `device` is what the function uses; one that is no "cpu" is reserved for it.
        """

    def describe(self) -> list[str]:
        """What it would use, a line for each machine."""

    def close(self) -> None:
        """Give back what was opened for it."""


class LocalEngine:
    """A plain loop."""

    name = "local"
    workers = 1

    def __init__(self, address: str | None = None) -> None:
        if address is not None:
            raise InputError(f"{address} is the address of a Ray cluster; add --engine ray, or leave the address out")

    def map(
        self, function: Callable[..., Any], items: Iterable[Any], *shared: Any, device: str = "cpu"
    ) -> Iterator[Any]:
        """function(item, *shared) for every item, each when its result is asked for."""
        return (function(item, *shared) for item in items)

    def describe(self) -> list[str]:
        """This process."""
        return ["this process"]

    def close(self) -> None:
        """Nothing was opened."""


ENGINES: Registry[Callable[[str | None], Engine]] = Registry(
    "engine", {"local": LocalEngine, "ray": "calmrl._support.ray_engine:RayEngine"}
)


@contextmanager
def opened(engine: str | Engine, address: str | None = None) -> Iterator[Engine]:
    """An engine by name, closed at the end; one that is open already is left open."""
    if not isinstance(engine, str):
        if address is not None:
            raise InputError("an address goes with the name of an engine; an engine that is open has its own")
        yield engine
        return
    started = ENGINES[engine](address)
    try:
        yield started
    finally:
        started.close()
