"""Where the last packet, page or frame of a stream ends, for formats that have no length of the whole."""

from __future__ import annotations

import struct
from typing import BinaryIO

FLV_HEADER = 9
OGG_HEADER, OGG_LAST = 27, 4  # bytes; flag of the last page of a stream
PACK, END_CODE = b"\0\0\1\xba", b"\0\0\1\xb9"
BITRATES = {  # kbit/s of MPEG audio, by (version 1 or not, layer)
    (True, 1): (32, 64, 96, 128, 160, 192, 224, 256, 288, 320, 352, 384, 416, 448),
    (True, 2): (32, 48, 56, 64, 80, 96, 112, 128, 160, 192, 224, 256, 320, 384),
    (True, 3): (32, 40, 48, 56, 64, 80, 96, 112, 128, 160, 192, 224, 256, 320),
    (False, 1): (32, 48, 56, 64, 80, 96, 112, 128, 144, 160, 176, 192, 224, 256),
    (False, 2): (8, 16, 24, 32, 40, 48, 56, 64, 80, 96, 112, 128, 144, 160),
    (False, 3): (8, 16, 24, 32, 40, 48, 56, 64, 80, 96, 112, 128, 144, 160),
}
RATES = {3: (44100, 48000, 32000), 2: (22050, 24000, 16000), 0: (11025, 12000, 8000)}  # Hz, by version


def ogg_end(file: BinaryIO, size: int) -> int | None:
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


def flv_end(file: BinaryIO, size: int) -> int | None:
    """The end of the last tag and of the number that follows it."""
    place = FLV_HEADER + 4
    while place < size:
        file.seek(place)
        head = file.read(11)
        place += 15 + int.from_bytes(head[1:4], "big")
        if len(head) < 11:
            return place
    return place


def program_stream_end(file: BinaryIO, size: int) -> int | None:
    """The end of the last packet of an MPEG program stream; None where packets cannot be followed."""
    place = 0
    while place + 4 <= size:
        file.seek(place)
        head = file.read(16)
        if head[:4] == END_CODE:
            place += 4
        elif head[:4] == PACK:
            is_mpeg2 = len(head) > 4 and head[4] >> 6 == 1
            place += 14 + (head[13] & 7 if len(head) > 13 else 0) if is_mpeg2 else 12
        elif head[:3] == b"\0\0\1" and head[3] >= 0xBB:
            place += 6 + (struct.unpack(">H", head[4:6])[0] if len(head) >= 6 else 0)
        else:
            return None
    return place


def adts_end(file: BinaryIO, size: int) -> int | None:
    """The end of the last frame of AAC; None where frames cannot be followed."""
    place = 0
    while place + 7 <= size:
        file.seek(place)
        head = file.read(7)
        length = (head[3] & 3) << 11 | head[4] << 3 | head[5] >> 5
        if head[0] != 0xFF or head[1] & 0xF6 != 0xF0 or length < 7:
            return None
        place += length
    return place if place >= size else size + 1


def mp3_end(file: BinaryIO, size: int) -> int | None:
    """The end of the last frame, or the end that a Xing header gives; None where frames cannot be followed."""
    place = _after_tags(file)
    first = True
    while place + 4 <= size:
        file.seek(place)
        length = _mpeg_frame(file.read(4))
        if length is None:
            return None  # a tag at the end, or something else than frames
        if first:
            xing = _xing_bytes(file.read(min(length, 200)))
            if xing is not None:
                return place + xing
        first = False
        place += length
    return place


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
