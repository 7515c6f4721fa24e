"""Whether a film or a sound is all there, by what its container says of its own length; nothing is decoded.

FFmpeg plays what is left of a file that was cut off, so that an hour that became a minute looks like a minute.

| container | what is compared with the bytes that are there |
|---|---|
| WAV, AVI, AIFF | the lengths of the chunks |
| MP4, MOV, M4A, 3GP | the lengths of the outer boxes |
| Matroska, WebM | the length of the segment |
| ASF (WMA, WMV) | the length of the file |
| FLV, MPEG-PS | the lengths of the packets |
| MPEG-TS | whole packets of 188 bytes |
| Ogg | the lengths of the pages, and that each stream is closed |
| MP3, AAC | the lengths of the frames, and the length in the Xing header |

Lengths that a live stream leaves open count as whole. A file cut exactly between two frames or packets of a format
without a length of its own cannot be told from a shorter one.
"""

from __future__ import annotations

import io
import os
import struct
from collections.abc import Callable, Iterator
from typing import BinaryIO

from calmrl.data.media.packet_lengths import PACK, adts_end, flv_end, mp3_end, ogg_end, program_stream_end
from calmrl.data.media.unreadable import Unreadable

OPEN = (0, 0xFFFFFFFF)  # lengths of chunks of a live stream
ASF = bytes.fromhex("3026b2758e66cf11a6d900aa0062ce6c")
ASF_FILE = bytes.fromhex("a1dcab8c47a9cf118ee400c00c205365")
TS_PACKET = 188
EBML_SEGMENT = 0x18538067
Ends = Callable[[BinaryIO, int], "int | None"]  # file, its size -> the byte where it should end; None: it does not say


def check_whole(source: str | bytes, label: str) -> None:
    """Raise Unreadable ("cut off") if the file at a path, or these bytes of it, ends before its own end."""
    with io.BytesIO(source) if isinstance(source, bytes) else open(source, "rb") as file:
        size = file.seek(0, os.SEEK_END)
        file.seek(0)
        ends = _ends_of(file.read(16))
        end = None if ends is None else ends(file, size)
    if end is not None and end > size:
        raise Unreadable("cut off", f"{label} has {size:,} bytes but its own lengths end at byte {end:,} or later")


def _ends_of(start: bytes) -> Ends | None:
    """The rule for the container that the first bytes announce."""
    if start[:4] in (b"RIFF", b"RF64"):
        return _riff_end if start[8:12] != b"WAVE" else _wav_end
    if start[:4] == b"FORM":
        return _aiff_end
    if start[4:8] in (b"ftyp", b"moov", b"mdat", b"wide", b"free", b"skip", b"pnot"):
        return _boxes_end
    if start == ASF:
        return _asf_end
    if start[:1] == b"\x47":
        return _ts_end
    named: dict[bytes, Ends] = {
        b"\x1aE\xdf\xa3": _matroska_end,
        b"OggS": ogg_end,
        PACK: program_stream_end,
        b"FLV\1": flv_end,
    }
    if start[:4] in named:
        return named[start[:4]]
    if len(start) > 2 and start[0] == 0xFF and start[1] & 0xF6 == 0xF0:
        return adts_end
    return mp3_end if start[:3] == b"ID3" or (len(start) > 2 and start[0] == 0xFF and start[1] & 0xE0 == 0xE0) else None


def _number(file: BinaryIO, form: str) -> int | None:
    content = file.read(struct.calcsize(form))
    return struct.unpack(form, content)[0] if len(content) == struct.calcsize(form) else None


def _chunks(file: BinaryIO, size: int, form: str) -> Iterator[tuple[int, bytes, int]]:
    """(place, name, length) of the chunks after the first twelve bytes; the file stands behind the length."""
    place = 12
    while place + 8 <= size:
        file.seek(place)
        name, length = file.read(4), _number(file, form) or 0
        yield place, name, length
        place += 8 + length + length % 2


def _wav_end(file: BinaryIO, size: int) -> int | None:
    """The end of the chunk with the samples; RF64 files keep its length in the chunk ds64."""
    long_data = None
    for place, name, length in _chunks(file, size, "<I"):
        if name == b"ds64":
            file.seek(8, os.SEEK_CUR)
            long_data = _number(file, "<Q")
        if name == b"data":
            if long_data is not None and length == OPEN[1]:
                return place + 8 + long_data
            return None if length in OPEN else place + 8 + length
    return size + 1  # no samples at all


def _riff_end(file: BinaryIO, size: int) -> int | None:
    """The end of the last RIFF chunk; long films have several."""
    place = 0
    while place + 8 <= size:
        file.seek(place)
        name, length = file.read(4), _number(file, "<I") or 0
        if name != b"RIFF":
            return place
        if length in OPEN:
            return None
        place += 8 + length + length % 2
        if length % 2 and place - size == 1:  # a byte of padding that some writers leave out
            return size
    return place


def _aiff_end(file: BinaryIO, size: int) -> int | None:
    for place, name, length in _chunks(file, size, ">I"):
        if name == b"SSND":
            return None if length in OPEN else place + 8 + length
    return size + 1


def _boxes_end(file: BinaryIO, size: int) -> int | None:
    place = 0
    while place + 8 <= size:
        file.seek(place)
        length, _ = _number(file, ">I") or 0, file.read(4)
        if length == 1:
            length = _number(file, ">Q") or 0
        if length < 8:  # 0: up to the end
            return None
        place += length
    return place


def _matroska_end(file: BinaryIO, size: int) -> int | None:
    place = 0
    while place < size:
        file.seek(place)
        name, length = _ebml(file, keep_marker=True), _ebml(file)
        if name is None or length is None:
            return size + 1
        if length == -1:  # a live stream
            return None
        place = file.tell() + length
        if name == EBML_SEGMENT:
            return place
    return size + 1 if place == size else place


def _ebml(file: BinaryIO, keep_marker: bool = False) -> int | None:
    """A number of variable length; -1 if all its bits are set, None at the end of the file or without a marker."""
    first = file.read(1)
    if not first or first[0] == 0:
        return None
    more = 8 - first[0].bit_length()
    rest = file.read(more)
    if len(rest) < more:
        return None
    number = int.from_bytes(first + rest, "big")
    if keep_marker:
        return number
    number -= 1 << (7 * (more + 1))
    return -1 if number == (1 << (7 * (more + 1))) - 1 else number


def _asf_end(file: BinaryIO, size: int) -> int | None:
    """The length of the file is in one of the first objects of its header."""
    file.seek(0)
    place = file.read(16 + (1 << 16)).find(ASF_FILE)
    if place < 0:
        return None
    file.seek(place + 40)
    return _number(file, "<Q") or None


def _ts_end(file: BinaryIO, size: int) -> int | None:
    return None if size < TS_PACKET else -(-size // TS_PACKET) * TS_PACKET if _is_ts(file, size) else None


def _is_ts(file: BinaryIO, size: int) -> bool:
    """Every packet begins with the same byte; the first few are looked at."""
    for place in range(0, min(size, 5 * TS_PACKET), TS_PACKET):
        file.seek(place)
        if file.read(1) != b"\x47":
            return False
    return True
