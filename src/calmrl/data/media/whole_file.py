"""Whether a video or a sound is all there, by what its container says of its own length; nothing is decoded.

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
from collections.abc import Callable
from functools import partial
from typing import BinaryIO

from calmrl.data.media.problems import Unreadable

OGG_HEADER, OGG_LAST = 27, 4  # bytes; flag of the last page of a stream
PACK, END_CODE = b"\0\0\1\xba", b"\0\0\1\xb9"  # of an MPEG program stream
OPEN = (0, 0xFFFFFFFF)  # lengths of chunks of a live stream
ASF = bytes.fromhex("3026b2758e66cf11a6d900aa0062ce6c")
ASF_FILE = bytes.fromhex("a1dcab8c47a9cf118ee400c00c205365")
TS_PACKET = 188
EBML_SEGMENT = 0x18538067
BITRATES = {  # kbit/s of MPEG audio, by (version 1 or not, layer)
    (True, 1): (32, 64, 96, 128, 160, 192, 224, 256, 288, 320, 352, 384, 416, 448),
    (True, 2): (32, 48, 56, 64, 80, 96, 112, 128, 160, 192, 224, 256, 320, 384),
    (True, 3): (32, 40, 48, 56, 64, 80, 96, 112, 128, 160, 192, 224, 256, 320),
    (False, 1): (32, 48, 56, 64, 80, 96, 112, 128, 144, 160, 176, 192, 224, 256),
    (False, 2): (8, 16, 24, 32, 40, 48, 56, 64, 80, 96, 112, 128, 144, 160),
    (False, 3): (8, 16, 24, 32, 40, 48, 56, 64, 80, 96, 112, 128, 144, 160),
}
RATES = {3: (44100, 48000, 32000), 2: (22050, 24000, 16000), 0: (11025, 12000, 8000)}  # Hz, by version
Ends = Callable[[BinaryIO, int], "int | None"]  # file, its size -> the byte where it should end; None: it does not say
Length = Callable[[bytes], "int | None"]  # first bytes of a piece -> its length; None: it is no such piece


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
        return _riff_end if start[8:12] != b"WAVE" else partial(_chunk_end, b"data", "<I")
    if start[4:8] in (b"ftyp", b"moov", b"mdat", b"wide", b"free", b"skip", b"pnot"):
        return _boxes_end
    named: dict[bytes, Ends] = {
        b"FORM": partial(_chunk_end, b"SSND", ">I"),
        b"\x1aE\xdf\xa3": _matroska_end,
        b"OggS": _ogg_end,
        PACK: _program_stream_end,
        b"FLV\1": _flv_end,
    }
    if start == ASF or start[:4] in named:
        return _asf_end if start == ASF else named[start[:4]]
    if start[:1] == b"\x47":
        return _ts_end
    is_frame = len(start) > 2 and start[0] == 0xFF
    if is_frame and start[1] & 0xF6 == 0xF0:
        return _adts_end
    return _mp3_end if start[:3] == b"ID3" or (is_frame and start[1] & 0xE0 == 0xE0) else None


def _follow(file: BinaryIO, size: int, place: int, least: int, length_of: Length) -> int | None:
    """The end of the last of the pieces that begin at `place`, one after the other; None where one cannot be followed.

    Fewer than `least` bytes at the end are no piece.
    """
    while place + least <= size:
        file.seek(place)
        length = length_of(file.read(16))
        if length is None:
            return None
        place += length
    return place


def _number(content: bytes, form: str) -> int:
    """A number in binary form; 0 where it is not whole."""
    return int(struct.unpack(form, content)[0]) if len(content) == struct.calcsize(form) else 0


# ---- containers with a length of the whole, or of chunks


def _chunk_end(wanted: bytes, form: str, file: BinaryIO, size: int) -> int | None:
    """The end of the chunk with the samples; RF64 files keep its length in the chunk ds64."""
    place, long_data = 12, 0
    while place + 8 <= size:
        file.seek(place)
        head = file.read(16)
        name, length = head[:4], _number(head[4:8], form)
        if name == b"ds64":
            long_data = _number(file.read(8), "<Q")
        if name == wanted:
            length = long_data if long_data and length == OPEN[1] else length
            return None if length in OPEN else place + 8 + length
        place += 8 + length + length % 2
    return size + 1  # no samples at all


def _riff_end(file: BinaryIO, size: int) -> int | None:
    """The end of the last RIFF chunk; long videos have several."""
    place = 0
    while place + 8 <= size:
        file.seek(place)
        name, length = file.read(4), _number(file.read(4), "<I")
        if name != b"RIFF":
            return place
        if length in OPEN:
            return None
        place += 8 + length + length % 2
        if length % 2 and place - size == 1:  # a byte of padding that some writers leave out
            return size
    return place


def _boxes_end(file: BinaryIO, size: int) -> int | None:
    def length_of(head: bytes) -> int | None:
        length = _number(head[:4], ">I")
        length = _number(head[8:16], ">Q") if length == 1 else length
        return length if length >= 8 else None  # 0: up to the end

    return _follow(file, size, 0, 8, length_of)


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
    file.seek(place + 40)
    return None if place < 0 else _number(file.read(8), "<Q") or None


# ---- streams of packets


def _ogg_end(file: BinaryIO, size: int) -> int | None:
    """The end of the last page; one more than the size if a stream is not closed."""
    place, still_open = 0, set()
    while place < size:
        file.seek(place)
        head = file.read(OGG_HEADER)
        if head[:4] != b"OggS" and head.strip(b"\0"):
            return None if len(head) == OGG_HEADER else size + 1
        if len(head) < OGG_HEADER:
            return size + 1
        lengths = file.read(head[26])
        place += OGG_HEADER + head[26] + sum(lengths)
        still_open.add(head[14:18])
        if head[5] & OGG_LAST:
            still_open.discard(head[14:18])
    return place if place > size or not still_open else size + 1


def _flv_end(file: BinaryIO, size: int) -> int | None:
    """The end of the last tag and of the number that follows it."""
    return _follow(file, size, 13, 1, lambda head: 15 + int.from_bytes(head[1:4], "big"))


def _program_stream_end(file: BinaryIO, size: int) -> int | None:
    def length_of(head: bytes) -> int | None:
        if head[:4] == END_CODE:
            return 4
        if head[:4] == PACK:
            is_mpeg2 = len(head) > 4 and head[4] >> 6 == 1
            return 14 + (head[13] & 7 if len(head) > 13 else 0) if is_mpeg2 else 12
        return 6 + _number(head[4:6], ">H") if head[:3] == b"\0\0\1" and head[3] >= 0xBB else None

    return _follow(file, size, 0, 4, length_of)


def _ts_end(file: BinaryIO, size: int) -> int | None:
    """Whole packets, where each of the first five begins with the same byte."""
    for place in range(0, min(size, 5 * TS_PACKET), TS_PACKET):
        file.seek(place)
        if file.read(1) != b"\x47":
            return None
    return None if size < TS_PACKET else -(-size // TS_PACKET) * TS_PACKET


def _adts_end(file: BinaryIO, size: int) -> int | None:
    """The end of the last frame of AAC; a byte more than the size if the last header is not whole."""

    def length_of(head: bytes) -> int | None:
        length = (head[3] & 3) << 11 | head[4] << 3 | head[5] >> 5
        return length if head[0] == 0xFF and head[1] & 0xF6 == 0xF0 and length >= 7 else None

    end = _follow(file, size, 0, 7, length_of)
    return end if end is None or end >= size else size + 1


def _mp3_end(file: BinaryIO, size: int) -> int | None:
    """The end of the last frame, or the end that a Xing header in the first one gives."""
    place = _after_tags(file)
    file.seek(place)
    first = _mpeg_frame(file.read(4).ljust(4, b"\0"))
    xing = None if first is None else _xing_bytes(file.read(min(first, 200)))
    return _follow(file, size, place, 4, _mpeg_frame) if xing is None else place + xing


def _after_tags(file: BinaryIO) -> int:
    """The byte after ID3 tags at the start."""
    place = 0
    while True:
        file.seek(place)
        head = file.read(10)
        if head[:3] != b"ID3" or len(head) < 10:
            return place
        place += 10 + sum((byte & 0x7F) << shift for byte, shift in zip(head[6:], (21, 14, 7, 0), strict=True))


def _mpeg_frame(head: bytes) -> int | None:
    """The length of a frame of MPEG audio, from the four bytes of its header."""
    if head[0] != 0xFF or head[1] & 0xE0 != 0xE0:
        return None
    version, layer = head[1] >> 3 & 3, 4 - (head[1] >> 1 & 3)
    bitrate, rate, padding = head[2] >> 4, head[2] >> 2 & 3, head[2] >> 1 & 1
    if version == 1 or layer == 4 or not 1 <= bitrate <= 14 or rate == 3:
        return None
    bits, hertz = BITRATES[version == 3, layer][bitrate - 1] * 1000, RATES[version][rate]
    if layer == 1:
        return (12 * bits // hertz + padding) * 4
    return (144 if version == 3 or layer == 2 else 72) * bits // hertz + padding


def _xing_bytes(frame: bytes) -> int | None:
    """The bytes from the first frame on that a Xing or Info header counts."""
    place = max(frame.find(b"Xing"), frame.find(b"Info"))
    if place < 0 or len(frame) < place + 16 or not frame[place + 7] & 2:
        return None
    start = place + 8 + (4 if frame[place + 7] & 1 else 0)
    return struct.unpack(">I", frame[start : start + 4])[0]
