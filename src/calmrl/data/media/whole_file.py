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

from calmrl.data.media.problems import Unreadable

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
            return None  # a tag at the end, or something other than frames
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
