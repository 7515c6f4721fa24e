"""Requests that no client of good will sends, as bytes: each must be refused with a status from 400 to 499."""

from __future__ import annotations

import io
import json
import struct
import wave
import zlib
from dataclasses import replace
from pathlib import Path

from calmrl.server import Limits
from tests.support import shapes as data
from tests.support.serving import exchange, status

LIMITS = Limits(body_bytes=2**20, pixels=10**6, audio_seconds=5)
SHORT = replace(LIMITS, header_seconds=2, body_seconds=2, stall_seconds=1)  # for clients that are slow on purpose
FORM = "multipart/form-data; boundary=xx"
SECRET = b"root:x:0:0"  # how /etc/passwd begins


def request(line: str, *headers: str, body: bytes = b"", host: str = "127.0.0.1") -> bytes:
    sent = [line + " HTTP/1.1", f"Host: {host}", "Connection: close", *headers]
    return "\r\n".join([*sent, "", ""]).encode("latin-1") + body


def get(path: str, *headers: str) -> bytes:
    return request("GET " + path, *headers)


def form(*parts: tuple[str, bytes], boundary: str = "xx", line: str = "POST /api/search", end: bool = True) -> bytes:
    """A multipart form; each part is what follows `Content-Disposition: form-data; `, and its content."""
    body = b"".join(
        f"--{boundary}\r\nContent-Disposition: form-data; {name}\r\n\r\n".encode() + content + b"\r\n"
        for name, content in parts
    )
    body += f"--{boundary}--\r\n".encode() if end else b""
    kind = f"Content-Type: multipart/form-data; boundary={boundary}"
    return request(line, kind, f"Content-Length: {len(body)}", body=body)


def post(kind: str, body: bytes) -> bytes:
    return request("POST /api/search", f"Content-Type: {kind}", f"Content-Length: {len(body)}", body=body)


def image(content: bytes) -> bytes:
    return form(('name="image"; filename="a.png"', content))


def sound(content: bytes) -> bytes:
    return form(('name="sound"; filename="a.wav"', content))


def chunk(kind: bytes, content: bytes) -> bytes:
    return struct.pack(">I", len(content)) + kind + content + struct.pack(">I", zlib.crc32(kind + content))


def bomb(width: int, height: int) -> bytes:
    """A PNG of a few bytes that says it is large."""
    header = struct.pack(">IIBBBBB", width, height, 8, 0, 0, 0, 0)
    return (
        b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", header) + chunk(b"IDAT", zlib.compress(bytes(1000))) + chunk(b"IEND", b"")
    )


def long_sound() -> bytes:
    out = io.BytesIO()
    with wave.open(out, "wb") as file:
        file.setnchannels(1)
        file.setsampwidth(1)
        file.setframerate(1000)
        file.writeframes(bytes(60_000))
    return out.getvalue()


TAG = b"ID3\x04\x00\x00\x00\x00\x00\x0a" + bytes(10)
PLAYLIST = b"ffconcat version 1.0\nfile /etc/passwd\n"
FILE = "/api/items/red%2Fcircle/files/sound"
REQUESTS = {
    "traversal in an id": get("/api/items/..%2F..%2F..%2Fetc%2Fpasswd/files/image"),
    "traversal in an id, not encoded": get("/api/items/../../../../etc/passwd"),
    "traversal in an id, twice encoded": get("/api/items/..%252F..%252Fetc%252Fpasswd"),
    "traversal with backslashes": get("/api/items/..%5C..%5Cetc%5Cpasswd"),
    "an absolute path as an id": get("/api/items/%2Fetc%2Fpasswd/thumbnail"),
    "traversal in a modality": get("/api/items/red%2Fcircle/files/..%2Fitems.jsonl"),
    "traversal in a modality, not encoded": get("/api/items/red%2Fcircle/files/../../items.jsonl"),
    "an absolute path as a modality": get("/api/items/red%2Fcircle/files/%2Fetc%2Fpasswd"),
    "a file of the collection by its path": get("/api/items/0.png/files/image"),
    "the manifest by its path": get("/items.jsonl"),
    "traversal from the page": get("/../app.py"),
    "traversal from the page, encoded": get("/%2e%2e/app.py"),
    "the source of the server": get("/page/page.js"),
    "dots as an id": get("/api/items/.."),
    "an empty id": get("/api/items//files/image"),
    "a zero byte in an id": get("/api/items/red%2Fcircle%00.png"),
    "an id that is not UTF-8": get("/api/items/%ff%fe"),
    "overlong UTF-8 in an id": get("/api/items/%c0%ae%c0%ae%c0%afetc"),
    "a very long id": get("/api/items/" + "a" * 5000),
    "a very long address": get("/api/search?text=" + "a" * 20_000),
    "headers beyond all measure": get("/", "X-Much: " + "a" * 100_000),
    "an unknown address": get("/.git/config"),
    "an address of another server": get("http://evil.example/api/about", "Host: evil.example"),
    "SQL in where": get("/api/search?text=a&where=1%3D1%3B%20DROP%20TABLE%20items"),
    "a union in where": get("/api/items?where=label%3D%27a%27%20UNION%20SELECT%20*%20FROM%20x"),
    "a function in where": get("/api/items?where=read_csv(%27%2Fetc%2Fpasswd%27)"),
    "an open quote in where": get("/api/items?where=label%20%3D%20%27a"),
    "leaving the parentheses of where": get("/api/items?label=red&where=label%3D%27a%27)%20or%20(1%3D1"),
    "deep parentheses in where": get("/api/items?where=" + "(" * 900),
    "SQL in having": get("/api/search?text=a&having=image%60%20OR%201%3D1%20--"),
    "a backtick in having": get("/api/items?having=%60"),
    "a negative k": get("/api/search?text=a&k=-1"),
    "a k beyond all measure": get("/api/search?text=a&k=99999999999999999999"),
    "a k that is no number": get("/api/search?text=a&k=NaN"),
    "digits of another script": get("/api/search?text=a&k=%D9%A3"),
    "an unknown parameter": get("/api/search?text=a&path=/etc/passwd"),
    "a picture by path": get("/api/search?image=/etc/passwd"),
    "a hundred parameters": get("/api/search?" + "&".join(["having=image"] * 200)),
    "JSON instead of a form": post("application/json", b"{}"),
    "a form without a boundary": post("multipart/form-data", b"xx"),
    "a form that does not end": form(('name="image"; filename="a.png"', b"x"), end=False),
    "a form of noise": post(FORM, bytes(range(9))),
    "a form in a code that always fails": post(FORM + "; charset=undefined", b'--xx\r\nContent-Disposition: form-data; '
                                               b'name="text"\r\n\r\na\r\n--xx--\r\n'),
    "half a pair of letters": post(FORM + "; charset=utf-7", b'--xx\r\nContent-Disposition: form-data; name="text"'
                                   b"\r\n\r\n+2AA-\r\n--xx--\r\n"),
    "a picture in a field": form(('name="image"', b"/etc/passwd")),
    "a file with another name": form(('name="passwd"; filename="../../x"', data.png("red", "circle"))),
    "two pictures": form(*[('name="image"; filename="a.png"', data.png("red", "circle"))] * 2),
    "many files": form(*[(f'name="f{i}"; filename="a"', b"x") for i in range(50)]),
    "many fields": form(*[("name=\"having\"", b"image")] * 100),
    "a field beyond all measure": form(('name="text"', b"a" * 200_000)),
    "text that is no picture": image(b"<svg onload=alert(1)>" * 10),
    "an empty picture": image(b""),
    "a picture of 10 gigapixels": image(bomb(100_000, 100_000)),
    "a picture of 4 megapixels": image(bomb(2000, 2000)),
    "a picture cut off": image(data.png("red", "circle")[:80]),
    "an empty sound": sound(b""),
    "noise as sound": sound(bytes(range(256)) * 10),
    "a play list as sound": sound(PLAYLIST),
    "a play list behind a tag": sound(TAG + PLAYLIST),
    "a play list of the web": sound(b"#EXTM3U\n#EXTINF:1,\nhttp://127.0.0.1/\n"),
    "a minute of sound": sound(long_sound()),
    "a sound cut off": sound(data.tone(440)[:30]),
    "a body that says it is huge": request("POST /api/search", f"Content-Type: {FORM}", "Content-Length: 99999999999"),
    "two lengths": request("POST /api/search", "Content-Length: 5", "Content-Length: 6", body=b"aaaaaa"),
    "a length and chunks": request("POST /api/search", "Content-Length: 5", "Transfer-Encoding: chunked", body=b"0\r\n\r\n"),
    "a negative length": request("POST /api/search", "Content-Length: -5"),
    "another host": request("GET /api/about", host="evil.example"),
    "a host that begins like ours": request("GET /api/about", host="127.0.0.1.evil.example"),
    "two hosts": get("/api/about", "Host: evil.example"),
    "no host": b"GET /api/about HTTP/1.1\r\nConnection: close\r\n\r\n",
    "a host with a path": request("GET /api/about", host="127.0.0.1/../evil"),
    "a page of another site": get("/api/about", "Origin: https://evil.example"),
    "a form of another site": request("POST /api/items", "Origin: http://evil.example", "Content-Length: 0"),
    "a range beyond the file": get(FILE, "Range: bytes=999999999-"),
    "a range backwards": get(FILE, "Range: bytes=9-1"),
    "a range of noise": get(FILE, "Range: bytes=a-b"),
    "a range beyond all measure": get(FILE, "Range: bytes=" + "9" * 400 + "-"),
    "many ranges": get(FILE, "Range: bytes=" + ",".join(["0-"] * 500)),
    "adding": form(('name="text"', b"x"), line="POST /api/items"),
    "removing": request("DELETE /api/items/red%2Fcircle"),
    "another method": request("PUT /api/items/red%2Fcircle", "Content-Length: 0"),
    "a method of another time": request("TRACE /"),
    "no HTTP": b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03",
    "half of HTTP": b"GET / HTTP/9.9\r\n\r\n",
}  # fmt: skip


def refused(port: int, name: str, folder: Path) -> None:
    """Send a request and check that it is refused without telling anything about the server."""
    answer = exchange(port, REQUESTS[name])
    assert status(answer) is not None, answer
    assert 400 <= status(answer) < 500, answer[:500]
    head, _, body = answer.partition(b"\r\n\r\n")
    assert b"Traceback" not in answer
    assert SECRET not in answer
    assert str(folder).encode() not in answer
    if b"application/json" in head:
        assert list(json.loads(body)) == ["error"]
