"""A search from the shell through a server of the same index, if one runs on this machine: it has everything loaded.

A server writes where it listens and a secret into a file of the user's cache that nobody else can read. A search that finds
the file says hello first; whoever listens there now must know the secret, or it is not asked. Requests and answers carry an
HMAC of the secret, a number used once and the content. In all other cases the search does without: nothing listens, the server
is of another version, too busy, or the folder of the index has changed. Nothing is imported here that computes.
"""

from __future__ import annotations

import hashlib
import hmac
import json
import os
import secrets
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

from calmrl._support.places import cache_folder, is_remote
from calmrl.errors import InputError, MissingExtraError

if TYPE_CHECKING:
    from http.client import HTTPConnection

ROUTE = "/api/shell"
NONCE, MAC = "x-calmrl-nonce", "x-calmrl-mac"
HELLO: dict[str, Any] = {}
CONNECT, ANSWER = 2.0, 60.0  # seconds that a search waits
LARGEST = 64 * 2**20  # bytes of an answer
ASKED, ANSWERED = b"asked", b"answered"


def address_file(index: str | Path) -> Path:
    """Where the server of an index says how it is reached."""
    place = os.path.realpath(index).encode("utf-8", "surrogateescape")
    return cache_folder() / "servers" / f"{hashlib.sha256(place).hexdigest()[:24]}.json"


def mac(secret: str, what: bytes, nonce: str, content: bytes) -> str:
    """Proof of the secret for one request or answer."""
    return hmac.new(
        secret.encode(), b"\0".join([what, nonce.encode("ascii", "replace"), content]), "sha256"
    ).hexdigest()


@contextmanager
def announced(
    index: str | Path, host: str, port: int, secret: str, report: Callable[[str], None] = lambda line: None
) -> Iterator[None]:
    """Say where the server of an index listens, as long as the block runs."""
    from calmrl import __version__

    content = {"host": host, "port": port, "secret": secret, "version": __version__}
    try:
        file = address_file(index)
        file.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        draft = file.with_name(f"{file.name}.{os.getpid()}")
        draft.unlink(missing_ok=True)
        with open(os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w", encoding="utf-8") as out:
            json.dump(content, out)
        os.replace(draft, file)
    except (OSError, InputError) as error:
        report(f"searches from the shell cannot use this server, for its address cannot be written: {error}")
        yield
        return
    try:
        yield
    finally:
        if (_read(file) or {}).get("secret") == secret:  # not that of a server that came later
            file.unlink(missing_ok=True)


def ask_server(index: str | Path, request: Mapping[str, Any]) -> dict[str, Any] | None:
    """The answer of a server of this index to a request as `answer` takes it; None where none can be trusted to give it."""
    from calmrl import __version__

    place = None if is_remote(index) else _read(address_file(index))
    if place is None or place.get("version") != __version__:
        return None
    from http.client import HTTPConnection, HTTPException  # here, for most commands ask no server

    with suppress(OSError, HTTPException, ValueError):  # whatever listens there now, it is not a server of calmrl
        connection = HTTPConnection(place["host"], place["port"], timeout=CONNECT)
        try:
            if _exchange(connection, place["secret"], HELLO) is None:
                return None
            connection.sock.settimeout(ANSWER)
            return _exchange(connection, place["secret"], request)
        finally:
            connection.close()
    return None


def _read(file: Path) -> dict[str, Any] | None:
    """What a server wrote; None where there is nothing, or where others could have written it."""
    try:
        with file.open(encoding="utf-8") as stream:
            status = os.fstat(stream.fileno())
            if os.name == "posix" and (status.st_uid != os.getuid() or status.st_mode & 0o077):
                return None
            content = json.load(stream)
    except (OSError, ValueError):
        return None
    known = {"host": str, "port": int, "secret": str}
    good = isinstance(content, dict) and all(isinstance(content.get(name), kind) for name, kind in known.items())
    return content if good else None


def _exchange(connection: HTTPConnection, secret: str, request: Mapping[str, Any]) -> dict[str, Any] | None:
    body, nonce = json.dumps(request).encode(), secrets.token_hex(16)
    headers = {"content-type": "application/json", NONCE: nonce, MAC: mac(secret, ASKED, nonce, body)}
    connection.request("POST", ROUTE, body, headers)
    response = connection.getresponse()
    content = response.read(LARGEST)
    proof = response.headers.get(MAC) or ""
    if response.status != 200 or not hmac.compare_digest(
        proof.encode(), mac(secret, ANSWERED, nonce, content).encode()
    ):
        return None
    answer = json.loads(content)
    return answer if isinstance(answer, dict) else None


# ---- what is asked and answered


def answer(index: Any, request: Mapping[str, Any]) -> dict[str, Any]:
    """What `calmrl search` prints: hits, whether nothing is close, and the file of each hit if they are asked for.

    `request`: "terms" (modality -> values, or pairs of weight and value), "k", "having", "lacking", "where", "hubs", "why",
    "files" (whether they are asked for), and "cwd", the folder that files of the query are relative to.
    """
    wanted = request["having"]
    hits = index.search(
        **{name: _values(index, name, values, request.get("cwd")) for name, values in request["terms"].items()},
        **{name: request[name] for name in ("k", "having", "lacking", "where", "hubs", "why")},
    )
    files: list[str | None] = []
    for hit in hits if request["files"] else ():
        own = {name: hit.paths[name] for name in wanted or [] if name in hit.paths} or hit.paths
        files.append(str(index.file(hit.id, next(iter(own)))) if own else None)
    verdict = {"verdict": hits.verdict, "nothing_close": hits.nothing_close}
    return {"hits": [asdict(hit) for hit in hits], **verdict, "files": files}


def _values(index: Any, name: str, values: list[Any] | None, cwd: str | None) -> list[Any] | None:
    """Values of a term as `Index.search` takes them."""
    if values is None:
        return None
    pairs = [tuple(value) if isinstance(value, (list, tuple)) else (1.0, value) for value in values]
    if cwd is not None and not index.is_words(name):
        pairs = [(weight, os.path.join(cwd, os.path.expanduser(value))) for weight, value in pairs]
    return pairs


def served(index: Any, request: Mapping[str, Any]) -> dict[str, Any]:
    """What a server answers a search from the shell: also what the folder of the index has changed, or why it is refused.

    {"declined": true} where the files of the folder "source" are asked for and the index is not up to date with them.
    """
    changes = index.folder_changes()
    source = request.get("source")
    if source is not None and (changes or index.layout["source"]["path"] != source):
        return {"declined": True}
    said = {"changes": changes.sentence(request["name"]) if changes else None}
    try:
        return {**said, **answer(index, request)}
    except (InputError, MissingExtraError) as error:
        return {**said, "error": str(error)}
