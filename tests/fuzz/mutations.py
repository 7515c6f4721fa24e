"""Ways to damage bytes. Each takes bytes and a random generator and returns other bytes."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from random import Random
from typing import Any

NUMBERS = (0, 1, 2, 127, 128, 255, 256, 32767, 65535, 2**31 - 1, 2**31, 2**32 - 1, 2**40, 2**63 - 1, 2**64 - 1)
WORDS = (
    b"[", b"]", b"{", b"}", b'"', b"'", b",", b":", b"\n", b"\0", b"-", b"nan", b"null", b"true", b"1e999", b"-1", b"&a ",
    b"*a", b"!!int ", b"\xff", b"\xed\xa0\x80", b"9" * 400, b"[" * 2000, b"../",
)  # fmt: skip

VALUES: tuple[Any, ...] = (
    None,
    [],
    {},
    "",
    "x",
    "../x",
    -1,
    0,
    10**12,
    10**30,
    1.5,
    float("nan"),
    True,
    [[1], 2],
    {"a": {}},
    "\ud800",
)

Mutation = Callable[[bytes, Random], bytes]


def flip_bits(content: bytes, rng: Random) -> bytes:
    changed = bytearray(content)
    for _ in range(rng.choice((1, 1, 1, 2, 8))):
        changed[rng.randrange(len(changed))] ^= 1 << rng.randrange(8)
    return bytes(changed)


def flip_byte(content: bytes, rng: Random) -> bytes:
    """One byte becomes another."""
    place = rng.randrange(len(content))
    return content[:place] + bytes([content[place] ^ rng.randrange(1, 256)]) + content[place + 1 :]


def cut(content: bytes, rng: Random) -> bytes:
    return content[: rng.randrange(len(content))]


def cut_blocks(content: bytes, rng: Random) -> bytes:
    """Cut at a multiple of 512, where tar files have their headers."""
    return content[: rng.randrange(len(content)) // 512 * 512]


def insert(content: bytes, rng: Random) -> bytes:
    place = rng.randrange(len(content) + 1)
    added = rng.choice(WORDS) if rng.random() < 0.6 else rng.randbytes(rng.choice((1, 2, 16, 300)))
    return content[:place] + added + content[place:]


def remove(content: bytes, rng: Random) -> bytes:
    place = rng.randrange(len(content))
    return content[:place] + content[place + rng.choice((1, 2, 7, 512, len(content) // 5 + 1)) :]


def swap(content: bytes, rng: Random) -> bytes:
    """Two pieces change places."""
    a, b, c, d = sorted(rng.randrange(len(content) + 1) for _ in range(4))
    return content[:a] + content[c:d] + content[b:c] + content[a:b] + content[d:]


def repeat(content: bytes, rng: Random) -> bytes:
    a, b = sorted(rng.randrange(len(content) + 1) for _ in range(2))
    return content[:b] + content[a:b] + content[b:]


def erase(content: bytes, rng: Random) -> bytes:
    """A piece becomes zeros, as on a bad disk."""
    place, length = rng.randrange(len(content)), rng.choice((1, 4, 16, 512))
    return content[:place] + bytes(len(content[place : place + length])) + content[place + length :]


def change_number(content: bytes, rng: Random) -> bytes:
    """A binary number of one to eight bytes becomes another."""
    width, order = rng.choice((1, 2, 4, 8)), rng.choice(("little", "big"))
    place = rng.randrange(max(1, min(len(content), rng.choice((64, 512, len(content)))) - width))
    number = (rng.choice(NUMBERS) % 256**width).to_bytes(width, order)  # type: ignore[arg-type]
    return content[:place] + number + content[place + width :]


def change_digits(content: bytes, rng: Random) -> bytes:
    """A number in text becomes another."""
    places = list(re.finditer(rb"\d+", content[:20_000]))
    if not places:
        return change_number(content, rng)
    chosen = rng.choice(places)
    number = str(rng.choice((*NUMBERS, -1, 10**12, 10**30))).encode()
    return content[: chosen.start()] + number + content[chosen.end() :]


def change_json(content: bytes, rng: Random) -> bytes:
    """A value somewhere in a JSON text becomes another, or its key goes; other bytes are damaged in another way."""
    try:
        value = json.loads(content)
    except (ValueError, RecursionError):
        return rng.choice((flip_bits, change_digits))(content, rng)
    places: list[tuple[Any, Any]] = []
    todo = [value]
    while todo:
        here = todo.pop()
        pairs = list(here.items() if isinstance(here, dict) else enumerate(here) if isinstance(here, list) else ())
        places += [(here, key) for key, _ in pairs]
        todo += [inner for _, inner in pairs]
    if places:
        here, key = rng.choice(places)
        if rng.random() < 0.25:
            del here[key]
        else:
            here[key] = rng.choice(VALUES)
    return json.dumps(value if places else rng.choice(VALUES)).encode()


MUTATIONS: tuple[Mutation, ...] = (
    flip_bits, cut, cut_blocks, insert, remove, swap, repeat, erase, change_number, change_digits, change_json,
)  # fmt: skip


def mutate(content: bytes, rng: Random) -> bytes:
    """The bytes after one mutation, or two."""
    for _ in range(rng.choice((1, 1, 1, 2))):
        content = rng.choice(MUTATIONS)(content, rng) if content else b"\0"
    return content
