"""Load on `calmrl serve`: many requests at once against one server; errors, milliseconds, and whether memory stays flat.

python -m benchmarks.serve                                  # the bundled emoji, 10,000 requests, 32 at once
python -m benchmarks.serve --index INDEX --requests 2000    # one's own index
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import re
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any
from urllib.parse import quote

WARM = 0.2  # share of the requests before memory is first read


def rss(pid: int) -> int:
    """Resident memory of a process in bytes (Linux)."""
    status = Path(f"/proc/{pid}/status").read_text()
    match = re.search(r"VmRSS:\s+(\d+) kB", status)
    if match is None:
        raise SystemExit(f"/proc/{pid}/status does not say how much memory the server has")
    return 1024 * int(match[1])


async def request(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, path: str) -> tuple[int, bytes]:
    """One GET on an open connection."""
    writer.write(f"GET {path} HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n".encode())
    head = await reader.readuntil(b"\r\n\r\n")
    length = re.search(rb"content-length: (\d+)", head.lower())
    body = await reader.readexactly(int(length[1]) if length else 0)
    return int(head.split(b" ", 2)[1]), body


async def one(port: int, path: str) -> Any:
    """A JSON answer on a connection of its own."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    _, body = await request(reader, writer, path)
    writer.close()
    return json.loads(body)


async def addresses(port: int, words: list[str]) -> list[str]:
    """A mixture: words (those of items if none are given), items, pages, thumbnails, parts of the page."""
    modalities = (await one(port, "/api/about"))["modalities"].values()
    page = (await one(port, "/api/items?limit=40"))["items"]
    words = words or [" ".join((item["text"] or item["label"] or item["id"]).split()[:4])[:200] for item in page]
    like = [f"/api/search?like={quote(item['id'], safe='')}&k=24" for item in page]
    by_words = [f"/api/search?text={quote(text)}&k=24" for text in words]
    pages = [f"/api/items?offset={n}&limit=24" for n in range(0, 40, 4)]
    pictures = [item["thumbnail"] for item in page if item["thumbnail"]]
    if not any(entry["kind"] == "text" and entry["searchable"] for entry in modalities):
        by_words = []
    return [*by_words, *like, *pages, *pictures, "/", "/page.js", "/api/about"]


async def load(port: int, total: int, at_once: int, pid: int, words: list[str]) -> dict[str, Any]:
    """`total` requests by `at_once` clients that each keep a connection."""
    paths = await addresses(port, words)
    times: list[float] = []
    errors: list[str] = []
    memory = {}
    numbers = iter(range(total))

    async def client() -> None:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        for number in numbers:
            path = paths[(number * 7919) % len(paths)]
            began = time.perf_counter()
            status, body = await request(reader, writer, path)
            times.append(time.perf_counter() - began)
            if status != 200:
                errors.append(f"{status} {path}: {body[:200]!r}")
            if len(times) == int(WARM * total):
                memory["warm"] = rss(pid)
        writer.close()

    began = time.perf_counter()
    await asyncio.gather(*(client() for _ in range(at_once)))
    seconds = time.perf_counter() - began
    ordered = sorted(times)
    return {
        "requests": len(times),
        "at once": at_once,
        "errors": errors,
        "per second": round(total / seconds, 1),
        "p50 ms": round(1000 * ordered[len(ordered) // 2], 1),
        "p95 ms": round(1000 * ordered[int(0.95 * len(ordered))], 1),
        "memory warm MB": round(memory["warm"] / 1e6, 1),
        "memory end MB": round(rss(pid) / 1e6, 1),
    }


def example(folder: Path) -> tuple[Path, list[str]]:
    """(an index of the emoji, words that are searched there without an encoder)."""
    from calmrl.datasets.emoji import query_vectors
    from calmrl.workflows.demo import emoji_index

    emoji_index(folder / "index")
    return folder / "index", list(query_vectors())[:40]


def start(index: Path) -> tuple[subprocess.Popen[str], int]:
    """The command `calmrl serve` on a free port."""
    run = [sys.executable, "-m", "calmrl", "serve", str(index), "--port", "0"]
    server = subprocess.Popen(run, stderr=subprocess.PIPE, text=True, env={**os.environ, "OMP_NUM_THREADS": "1"})
    assert server.stderr is not None
    for line in server.stderr:
        match = re.search(r"http://127\.0\.0\.1:(\d+)/", line)
        if match:
            return server, int(match[1])
    raise SystemExit("the server did not start")


def measure(index: Path | None, total: int, at_once: int) -> dict[str, Any]:
    """Serve an index, or the emoji, and put load on it."""
    with tempfile.TemporaryDirectory() as folder:
        path, words = (index, []) if index is not None else example(Path(folder))
        server, port = start(path)
        try:
            return asyncio.run(load(port, total, at_once, server.pid, words))
        finally:
            server.terminate()
            server.wait()


def run() -> list[dict[str, Any]]:
    """Memory after all requests, by memory after a fifth of them."""
    result = measure(None, 10_000, 32)
    if result["errors"]:
        raise SystemExit(f"{len(result['errors'])} requests failed, first: {result['errors'][0]}")
    note = f"p50 {result['p50 ms']} ms, p95 {result['p95 ms']} ms, {result['per second']} requests / s, no errors"
    ratio = result["memory end MB"] / result["memory warm MB"]
    return [
        {
            "case": "memory over 10,000 requests to emoji, 32 at once",
            "ratio": ratio,
            "target": "at most 1.1",
            "note": note,
        }
    ]


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--index", type=Path)
    parser.add_argument("--requests", type=int, default=10_000)
    parser.add_argument("--at-once", type=int, default=32)
    options = parser.parse_args()
    print(json.dumps(measure(options.index, options.requests, options.at_once), indent=2))


if __name__ == "__main__":
    main()
