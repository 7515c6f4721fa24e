"""Run an iterator ahead of its consumer, in a thread."""

import queue
import threading
from collections.abc import Generator
from typing import Any, TypeVar

T = TypeVar("T")


def ahead(items: Generator[T, None, None], depth: int) -> Generator[T, None, None]:
    """The same items in the same order, up to `depth` of them made before they are asked for.

    An error in the thread is raised here, in its place. Leaving the loop early ends the thread.
    """
    box: queue.Queue[tuple[str, Any]] = queue.Queue(maxsize=depth)
    stop = threading.Event()

    def put(event: str, value: Any) -> bool:
        while not stop.is_set():
            try:
                box.put((event, value), timeout=0.1)
                return True
            except queue.Full:
                continue
        return False

    def work() -> None:
        try:
            for item in items:
                if not put("item", item):
                    return
            put("end", None)
        except BaseException as error:  # handed to the consumer, whatever it is
            put("error", error)
        finally:
            items.close()

    thread = threading.Thread(target=work, name="calmrl-loader", daemon=True)
    thread.start()
    try:
        while True:
            event, value = box.get()
            if event == "end":
                return
            if event == "error":
                raise value
            yield value
    finally:
        stop.set()
        thread.join()
