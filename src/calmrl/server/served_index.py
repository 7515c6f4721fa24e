"""The collection as the server asks it: in a bounded number of threads, with answers as models."""

import asyncio
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import replace
from typing import Any, TypeVar

from starlette.exceptions import HTTPException

from calmrl.errors import InputError
from calmrl.metrics.retrieve import chance_level
from calmrl.server.limits import Limits
from calmrl.server.schemas import (
    About,
    BrowseParams,
    Hits,
    Item,
    ItemFields,
    Items,
    SearchParams,
    hit_model,
    item_model,
    path_part,
    plain,
)
from calmrl.server.uploads import add_item, added_folder, checked_files, modality_named, remove_item, rename_item

T = TypeVar("T")
RETRY_SECONDS = 2
ABOUT_SECONDS = 5.0
PRIVATE = ("path", "source", "problems", "modalities")  # paths on the disk of the server, and what is said already
NOUNS = {"text": "words", "image": "a picture", "audio": "a sound"}
TARGETS = {"text": "text", "image": "picture", "audio": "sound"}


def busy() -> HTTPException:
    """Too much to do; the client may try again."""
    return HTTPException(503, "too many requests are waiting; try again soon", {"Retry-After": str(RETRY_SECONDS)})


class Workers:
    """Runs functions in threads; 503 when too many wait, 504 when one takes too long."""

    def __init__(self, limits: Limits) -> None:
        self.limits = limits
        self.pool = ThreadPoolExecutor(limits.at_once, thread_name_prefix="calmrl-server")
        self.pending = 0

    async def run(self, function: Callable[..., T], *arguments: Any, **named: Any) -> T:
        """The result of a function, from another thread."""
        if self.pending >= self.limits.at_once + self.limits.waiting:
            raise busy()
        loop = asyncio.get_running_loop()
        self.pending += 1
        future = self.pool.submit(function, *arguments, **named)
        # A thread cannot be stopped: the request counts until its thread is done, even if nobody waits for it.
        future.add_done_callback(lambda done: _call_in(loop, self._done, done))
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


def _call_in(loop: asyncio.AbstractEventLoop, function: Callable[..., Any], *arguments: Any) -> None:
    """Call a function in the loop, unless the server has stopped meanwhile."""
    if not loop.is_closed():
        loop.call_soon_threadsafe(function, *arguments)


class ServedIndex:
    """An index, the threads that ask it, and what one client may ask of it."""

    def __init__(self, index: Any, limits: Limits, allow_add: bool) -> None:
        self.index = index
        self.limits = limits
        self.allow_add = allow_add
        self.workers = Workers(limits)
        self.searches = Workers(limits)  # so that what is quick need not wait for them
        self.encoders = Workers(replace(limits, at_once=1))  # uploads, so that they never take all threads
        self.modalities = {name: dict(entry) for name, entry in index.modalities().items()}
        self.kinds = {name: str(entry["kind"]) for name, entry in self.modalities.items()}
        self._uploads = 0
        self._about: About | None = None
        self._about_until = 0.0
        self._counting = threading.Lock()

    def close(self) -> None:
        """Let go of the threads."""
        self.workers.close()
        self.searches.close()
        self.encoders.close()

    @contextmanager
    def upload(self) -> Iterator[None]:
        """Bounds how many bodies are in memory at once."""
        if self._uploads >= self.limits.uploads:
            raise busy()
        self._uploads += 1
        try:
            yield
        finally:
            self._uploads -= 1

    def about(self) -> About:
        """What the collection is, and how well it can be searched.

        Counting a large collection takes a while, so that the answer is kept for some seconds.
        """
        with self._counting:
            about = self._about
            if about is None or time.monotonic() >= self._about_until:
                about = self._about = self._count()
                self._about_until = time.monotonic() + ABOUT_SECONDS
            return about

    def _count(self) -> About:
        from calmrl import __version__

        modalities = self.index.modalities()
        limits = {
            "body_bytes": self.limits.body_bytes,
            "pixels": self.limits.pixels,
            "sound_seconds": self.limits.audio_seconds,
            "hits": self.limits.hits,
        }
        return About(
            version=__version__,
            items=len(self.index),
            modalities=plain(modalities),
            labels=plain(list(self.index.labels())),
            expected=plain(expected_sentences(self.index.expected, modalities)),
            about=plain({name: value for name, value in self.index.about().items() if name not in PRIVATE}),
            allow_add=self.allow_add,
            limits=limits,
        )

    async def search(self, params: SearchParams, files: Mapping[str, bytes]) -> Hits:
        """Items by words, by an item, and by uploaded files."""
        if not (params.text or params.like or files):
            raise InputError("the query is empty; give text, like, or the files image and sound")
        workers = self.encoders if files else self.searches  # an encoder has a lock of its own
        return await workers.run(self._search, params, files)

    def _search(self, params: SearchParams, files: Mapping[str, bytes]) -> Hits:
        given: dict[str, Any] = checked_files(files, self.kinds, self.limits)
        if params.text is not None:
            given["text"] = params.weighted_words()
        terms = {modality_named(name, self.kinds): value for name, value in given.items()}
        hits = self.index.search(**terms, like=params.like, k=params.k, hubs=params.hubs, why=True, **params.filters())
        models = [hit_model(hit, self.modalities) for hit in hits]
        return Hits(count=len(hits), verdict=hits.verdict, nothing_close=hits.nothing_close, hits=models)

    def items(self, params: BrowseParams) -> Items:
        """A page of the collection in its own order."""
        page = self.index.items(offset=params.offset, limit=params.limit + 1, **params.filters())
        items = [self._model(item) for item in page[: params.limit]]
        return Items(offset=params.offset, count=len(items), more=len(page) > len(items), items=items)

    def item(self, id: str) -> Item:
        """One item."""
        return self._model(self.index.item(id))

    def _model(self, item: Any) -> Item:
        return item_model(item, self.modalities, added_folder(self.index, item) is not None)

    async def known(self, function: Callable[..., T], **parts: str) -> T:
        """What the collection has under these parts of an address, or 404."""
        names = [path_part(name, text, self.limits) for name, text in parts.items()]
        try:
            return await self.workers.run(function, *names)
        except InputError:
            raise HTTPException(404, "the collection has no such item, or no such file of it") from None

    async def add(self, fields: ItemFields, files: Mapping[str, bytes], named: list[str]) -> Item:
        """Put an item into the collection."""
        id = await self.encoders.run(add_item, self.index, fields, files, self.kinds, self.limits, named)
        self._about = None
        return await self.workers.run(self.item, id)

    async def rename(self, id: str, new: str) -> Item:
        """Call an item that was added otherwise."""
        if not new:
            raise InputError("the new name is empty; give it as id")
        await self.known(self.index.item, id=id)
        await self.encoders.run(rename_item, self.index, path_part("id", id, self.limits), new)
        return await self.workers.run(self.item, new)

    async def remove(self, id: str) -> None:
        """Take an item out of the collection."""
        await self.known(self.index.item, id=id)
        await self.workers.run(remove_item, self.index, path_part("id", id, self.limits))
        self._about = None


def expected_sentences(
    expected: Mapping[str, Mapping[str, float]], modalities: Mapping[str, Mapping[str, Any]]
) -> list[dict[str, Any]]:
    """One sentence per direction, the best first, with the numbers that it is made of.

    Parameters
    ----------
    expected : mapping
        Direction ("text->image") -> R@1, R@10, low and high (of R@1) in percent, and n, the items searched;
        "own", where several are right, is how many; "collections", where a base is quoted, is how many it was tried on.
    modalities : mapping
        Name -> its kind, among others.
    """
    rows = [_row(direction, numbers, modalities) for direction, numbers in expected.items()]
    return sorted(rows, key=lambda row: -row["R@1"])


def _row(direction: str, numbers: Mapping[str, float], modalities: Mapping[str, Mapping[str, Any]]) -> dict[str, Any]:
    given, _, target = direction.partition("->")
    n = int(numbers["n"])
    chance = {f"chance R@{k}": chance_level(k, n, numbers.get("own", 1)) for k in (1, 10)}
    right = "a right" if "own" in numbers else "the right"
    sentence = (
        f"A search by {_called(given, modalities, NOUNS)} should put {right} {_called(target, modalities, TARGETS)} "
        f"among {n:,} first in {_of_100(numbers['R@1'])} searches (likely {_whole(numbers['low'])} to "
        f"{_whole(numbers['high'])}) and among the first ten in {_of_100(numbers['R@10'])}; "
        f"guessing gives {_percent(chance['chance R@1'])} and {_percent(chance['chance R@10'])}."
    )
    if "collections" in numbers:
        sentence += f" That is what was learned elsewhere reached on {numbers['collections']:.0f} other collections."
    return {"direction": direction, "from": given, "to": target, "sentence": sentence, **numbers, **chance}


def _called(name: str, modalities: Mapping[str, Mapping[str, Any]], nouns: Mapping[str, str]) -> str:
    """The noun of a kind where one modality is of that kind, or is called so; otherwise the name of the modality."""
    parts = name.split("+")
    if len(parts) > 1:
        return " and ".join(_called(part, modalities, nouns) for part in parts)
    kind = str(modalities.get(name, {}).get("kind"))
    alone = name == kind or sum(one["kind"] == kind for one in modalities.values()) == 1
    return nouns[kind] if kind in nouns and alone else name


def _of_100(percent: float) -> str:
    return f"{_whole(percent)} of 100"


def _whole(percent: float) -> str:
    return "fewer than 1" if 0 < percent < 0.5 else f"{percent:.0f}"


def _percent(percent: float) -> str:
    return f"{percent:.0f} %" if percent >= 10 else f"{percent:.1f} %" if percent >= 0.1 else f"{percent:.2g} %"
