"""Run an iterator ahead of its consumer, in a thread."""

from collections import deque
from collections.abc import Generator
from concurrent.futures import ThreadPoolExecutor
from typing import Any, TypeVar

T = TypeVar("T")
END: Any = object()


def ahead(items: Generator[T, None, None], depth: int) -> Generator[T, None, None]:
    """The same items in the same order, up to `depth` of them made before they are asked for.

    An error in the thread is raised here, in its place. Leaving the loop early ends the thread.
    """
    with ThreadPoolExecutor(1, "calmrl-loader") as pool:
        waiting = deque(pool.submit(next, items, END) for _ in range(depth))
        try:
            while (item := waiting.popleft().result()) is not END:
                waiting.append(pool.submit(next, items, END))
                yield item
        finally:
            pool.shutdown(cancel_futures=True)
            items.close()
