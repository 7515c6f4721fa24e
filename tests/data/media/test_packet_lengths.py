"""Where streams and containers end by their own lengths, byte by byte, on files of a few bytes."""

from __future__ import annotations

import struct

import pytest

from calmrl.data.media.problems import Unreadable
from calmrl.data.media.whole_file import check_whole

KBITS = {  # ISO/IEC 11172-3 and 13818-3: version 1 or not, layer
    (True, 1): "32 64 96 128 160 192 224 256 288 320 352 384 416 448",
    (True, 2): "32 48 56 64 80 96 112 128 160 192 224 256 320 384",
    (True, 3): "32 40 48 56 64 80 96 112 128 160 192 224 256 320",
    (False, 1): "32 48 56 64 80 96 112 128 144 160 176 192 224 256",
    (False, 2): "8 16 24 32 40 48 56 64 80 96 112 128 144 160",
    (False, 3): "8 16 24 32 40 48 56 64 80 96 112 128 144 160",
}


def end_of(content: bytes) -> int | None:
    """The byte where a file should end that is cut off; None for one that counts as whole."""
    try:
        check_whole(content, "f")
    except Unreadable as error:
        return int(error.detail.split("end at byte ")[1].split(" ")[0].replace(",", ""))
    return None


# ---- MPEG audio


def mpeg_frame(one: int, two: int) -> int | None:
    """The length by the standard: 384 samples in layer 1, 1152 in layer 2, 1152 or 576 in layer 3."""
    version, layer = {0b11: 1, 0b10: 2, 0b00: 2.5}.get(one >> 3 & 3), {3: 1, 2: 2, 1: 3}.get(one >> 1 & 3)
    index, at, padding = two >> 4, two >> 2 & 3, bool(two & 2)
    if version is None or layer is None or index in (0, 15) or at == 3:
        return None
    rate = (44100, 48000, 32000)[at] // {1: 1, 2: 2, 2.5: 4}[version]
    bits = int(KBITS[version == 1, layer].split()[index - 1]) * 1000
    if layer == 1:
        return (384 // 32 * bits // rate + padding) * 4
    return (1152 if layer == 2 or version == 1 else 576) // 8 * bits // rate + padding


def test_every_header_of_mpeg_audio():
    for one in range(0xE0, 256):
        if one & 0xF6 != 0xF0:  # AAC
            for two in range(256):
                assert end_of(bytes([0xFF, one, two, 0])) == mpeg_frame(one, two), (one, two)


FRAME = b"\xff\xfb\x90\0"  # 128 kbit/s at 44.1 kHz: 417 bytes
PACK, END_CODE = b"\0\0\1\xba", b"\0\0\1\xb9"


def frame(start: bytes = b"") -> bytes:
    return (FRAME + start).ljust(417, b"\0")


def id3(length: int) -> bytes:
    parts = [length >> shift & 0x7F for shift in (21, 14, 7, 0)]
    return b"ID3\4\0\0" + bytes(parts) + b"x" * min(length, 100_000)


def xing(name: bytes, flags: int, *numbers: int) -> bytes:
    return frame(b"\0" * 32 + name + struct.pack(f">I{len(numbers)}I", flags, *numbers))


MP3 = [
    (frame() * 3, None),
    ((frame() * 3)[:-1], 3 * 417),
    (frame() * 3 + b"\xff\xfb\x90", None),  # no whole header
    (frame() * 2 + FRAME, 3 * 417),
    (frame() + b"TAG!", None),
    (id3(5) + id3(300) + frame()[:-1], 15 + 310 + 417),
    (id3(16_384 + 129) + frame()[:-1], 10 + 16_513 + 417),
    (id3(2_097_152)[:40], 10 + 2_097_152),
    (b"ID3\4\0\0\0\0\0", None),  # half a tag is no frame
    (xing(b"Xing", 3, 11, 5000), 5000),
    (id3(5) + xing(b"Info", 3, 11, 5000) + frame(), 15 + 5000),
    (xing(b"Info", 2, 5000, 11), 5000),
    (xing(b"Info", 0xF, 11, 5000), 5000),
    (xing(b"Info", 1, 11, 5000), None),
    (xing(b"Infx", 3, 11, 5000), None),
    (frame() + xing(b"Info", 3, 11, 5000), None),  # of the first frame only
    (xing(b"Xing", 3, 11, 5000)[:52], 5000),
    (xing(b"Xing", 3, 11, 5000)[:51], 417),  # a header that is not whole
    (frame(b"Xing" + struct.pack(">III", 3, 11, 5000)), 5000),
]


def adts(length: int, second: int = 0xF9) -> bytes:
    """All other bits of the header are set."""
    return bytes([0xFF, second, 0xFF, 0xFC | length >> 11, length >> 3 & 0xFF, (length & 7) << 5 | 0x1F, 0xFF])


AAC = [
    *((adts(length).ljust(length, b"\0") * 2, None) for length in (7, 8, 0x555, 0x1FFF)),
    *((adts(length), length) for length in (8, 0x555, 0xAAA, 0x1555, 0x1FFF)),
    (adts(9) + b"\0\0" + adts(20), 29),
    (adts(9) + b"\0\0" + b"\xff", 9 + 1 + 1),
    (adts(9) + b"\0\0" + b"\xff" * 6, 9 + 6 + 1),
    (adts(9) + b"\0\0" + b"\0" * 7, None),
    (adts(6), None),
    *((adts(9, second), 9) for second in (0xF0, 0xF1, 0xF8, 0xF9)),
    *((adts(9) + b"\0\0" + adts(20, second), None) for second in (0xE1, 0xF3, 0xF5)),
    (adts(9) + b"\0\0\xfe" + adts(20)[1:], None),
]


def page(stream: int, flags: int, *lengths: int) -> bytes:
    head = b"OggS\0" + bytes([flags]) + b"\xff" * 8 + struct.pack("<I", stream) + b"\xff" * 8 + bytes([len(lengths)])
    return head + bytes(lengths) + b"x" * sum(lengths)


FIRST, LAST, CLOSED = page(7, 2, 5, 6), page(7, 4, 200), page(7, 4, 3)
OGG = [
    (FIRST + LAST, None),
    ((FIRST + LAST)[:-1], len(FIRST + LAST)),
    (FIRST, len(FIRST) + 1),  # still open
    (page(7, 0xFB, 3), 31 + 1),
    (FIRST + page(8, 2) + LAST, len(FIRST + LAST) + 27 + 1),
    (FIRST + page(8, 2) + LAST + page(8, 4), None),
    (page(7 << 24, 2) + page(7, 4), 54 + 1),  # streams are told apart by all their bytes
    (CLOSED + b"g" * 27, None),
    (CLOSED + b"g" * 40, None),
    *((CLOSED + rest, 31 + len(rest) + 1) for rest in (b"g" * 26, CLOSED[:26], b"\0" * 5, b"\0" * 27)),
]


def tag(length: int) -> bytes:
    return b"\x09" + length.to_bytes(3, "big") + b"\xff" * 7 + b"x" * length + b"\0" * 4


FLV_START = b"FLV\1\5\0\0\0\x09\0\0\0\0"
FLV = [
    (FLV_START + tag(5) + tag(0x010203), None),
    ((FLV_START + tag(5) + tag(0x010203))[:-1], 13 + 20 + 15 + 0x010203),
    (FLV_START, None),
    (FLV_START + tag(5)[:10], 13 + 20),
    (FLV_START + tag(5)[:11], 13 + 20),
    (FLV_START + b"\x09", 13 + 15),
    (b"FLV\2", None),
]
MPEG_2 = PACK + b"\x44" + b"\0" * 8 + b"\xfb" + b"\xff" * 3  # three bytes of stuffing
MPEG_1 = PACK + b"\x21" + b"\0" * 7
PACKET = b"\0\0\1\xe0\1\2" + b"x" * 0x102
PROGRAM_STREAM = [
    (MPEG_2 + b"\0\0\1\xbb\0\1x" + PACKET + MPEG_1 + END_CODE, None),
    (MPEG_2 + PACKET + MPEG_1[:-1], 17 + 264 + 12),
    (MPEG_1 + END_CODE + b"\0\0\1", None),
    ((MPEG_2 + PACKET)[:-1], 17 + 264),
    *((MPEG_1 + wrong + b"x" * 9, None) for wrong in (b"\0\0\1\xb8", b"\0\0\2\xe0", b"abcd")),
    (PACK, 12),
    (MPEG_2[:5], 14),
    (MPEG_2[:13], 14),
    (MPEG_2[:14], 17),
    (PACK + b"\x84" + b"\0" * 6, 12),
    (MPEG_1 + PACKET[:5], 12 + 6),
    (MPEG_1 + PACKET[:6], 12 + 6 + 0x102),
]


# ---- containers with a length of the whole


def chunk(name: bytes, body: bytes, form: str = "<I", length: int | None = None) -> bytes:
    said = len(body) if length is None else length
    return name + struct.pack(form, said) + body + b"\0" * (len(body) % 2)


def wav(*chunks: bytes, name: bytes = b"RIFF") -> bytes:
    return name + struct.pack("<I", 4 + sum(map(len, chunks))) + b"WAVE" + b"".join(chunks)


def form(*chunks: bytes) -> bytes:
    return b"FORM" + struct.pack(">I", 4 + sum(map(len, chunks))) + b"AIFF" + b"".join(chunks)


def box(name: bytes, length: int, body: bytes = b"") -> bytes:
    return struct.pack(">I", length) + name + body


LONG = chunk(b"ds64", struct.pack("<QQQ", 1, 70, 3))
OPEN = 0xFFFFFFFF
WAV = [
    (wav(chunk(b"fmt ", b"123"), chunk(b"data", b"x" * 9)), None),
    (wav(chunk(b"fmt ", b"1234"), chunk(b"data", b"x" * 9, length=90)), 12 + 12 + 8 + 90),
    (wav(chunk(b"fmt ", b"123"), chunk(b"data", b"x" * 9, length=90), name=b"RF64"), 12 + 12 + 8 + 90),
    (wav(chunk(b"data", b"xy"), chunk(b"data", b"xyz", length=90)), None),
    (wav(chunk(b"data", b"xy", length=0)), None),
    (wav(chunk(b"data", b"xy", length=OPEN)), None),
    (wav(LONG, chunk(b"data", b"xy", length=OPEN)), 12 + 32 + 8 + 70),
    (wav(LONG, chunk(b"data", b"xy")), None),
    (wav(LONG, chunk(b"data", b"", length=0)), None),
    (wav(chunk(b"data", b"", length=6)), 12 + 8 + 6),
    (wav(chunk(b"fmt ", b"12")), 12 + 10 + 1),
    (wav(chunk(b"fmt ", b"12"), b"data123"), 12 + 10 + 7 + 1),
    (form(chunk(b"COMM", b"123", ">I"), chunk(b"SSND", b"x" * 9, ">I")), None),
    (form(chunk(b"COMM", b"123", ">I"), chunk(b"SSND", b"x" * 9, ">I", 90)), 12 + 12 + 8 + 90),
    (form(chunk(b"SSND", b"", ">I", 0)), None),
    (form(chunk(b"SSND", b"", ">I", OPEN)), None),
    (form(chunk(b"COMM", b"12", ">I")), 22 + 1),
]
AVI = [
    (chunk(b"RIFF", b"AVI 1234"), None),
    (chunk(b"RIFF", b"AVI 1234")[:-1], 16),
    (chunk(b"RIFF", b"AVI 1234") + chunk(b"RIFF", b"AVIX"), None),
    (chunk(b"RIFF", b"AVI 1234") + chunk(b"RIFF", b"AVIX")[:-1], 28),
    (chunk(b"RIFF", b"AVI 1234") + chunk(b"RIFF", b"AVIX123")[:-1], None),  # without the byte of padding
    (chunk(b"RIFF", b"AVI 1234") + chunk(b"RIFF", b"AVIX123")[:-2], 32),
    (chunk(b"RIFF", b"AVI 1234") + b"idx1" + b"\xff" * 9, None),
    (chunk(b"RIFF", b"AVI 1234") + b"RIFF123", None),
    (chunk(b"RIFF", b"AVI 1234") + b"RIFF" + struct.pack("<I", 4), 28),
    (chunk(b"RIFF", b"AVI 1234", length=0), None),
    (chunk(b"RIFF", b"AVI 1234", length=OPEN), None),
]
MP4 = [
    (box(b"ftyp", 12, b"mp42") + box(b"mdat", 8), None),
    (box(b"ftyp", 12, b"mp42") + box(b"mdat", 90), 102),
    (box(b"moov", 90), 90),
    (box(b"ftyp", 8) + box(b"mdat", 1, struct.pack(">Q", 70)), 78),
    (box(b"ftyp", 8) + box(b"mdat", 0, b"x" * 9), None),
    (box(b"ftyp", 8) + box(b"mdat", 7, b"x" * 9), None),
    (box(b"ftyp", 8) + box(b"mdat", 2, b"x" * 9), None),
    (box(b"ftyp", 8) + box(b"mdat", 1), None),
    (box(b"ftyp", 9, b"x") + b"1234567", None),
]
EBML, SEGMENT = b"\x1aE\xdf\xa3", b"\x18\x53\x80\x67"
MATROSKA = [
    (EBML + b"\x82xy" + SEGMENT + b"\x83xyz", None),
    (EBML + b"\x82xy" + SEGMENT + b"\x83xy", 7 + 8),
    (EBML + b"\x82xy" + SEGMENT + b"\x40\x09xyz", 7 + 6 + 9),
    (EBML + b"\x82xy" + SEGMENT + b"\x83xyz" + b"more", None),
    (EBML + b"\x82xy" + SEGMENT + b"\xffxyz", None),
    (EBML + b"\x82xy" + SEGMENT + b"\x01\xff\xff\xff\xff\xff\xff\xffxyz", None),
    (EBML + b"\x82xy" + SEGMENT + b"\x01\0\0\0\0\0\1\2", 7 + 12 + 0x102),
    (EBML + b"\x82xy" + SEGMENT, 11 + 1),
    (EBML + b"\x82xy" + SEGMENT + b"\x40", 12 + 1),
    (EBML + b"\x82xy" + b"\0\0\0", 10 + 1),
    (EBML + b"\x82xy", 7 + 1),
    (EBML + b"\x89xy", 5 + 9),
    (EBML + b"\x82xy" + b"\xec\x81x" + SEGMENT + b"\x82x", 10 + 5 + 2),
]
ASF, ASF_FILE = bytes.fromhex("3026b2758e66cf11a6d900aa0062ce6c"), bytes.fromhex("a1dcab8c47a9cf118ee400c00c205365")
TS = b"\x47" + b"x" * 187
OTHERS = [
    *((ASF + b"x" * 14 + ASF_FILE + b"x" * 24 + struct.pack("<Q", n) + b"x" * 30, n or None) for n in (400, 0)),
    (ASF + b"x" * 90, None),
    (ASF[:-1] + b"x" * 15 + ASF_FILE + b"x" * 24 + struct.pack("<Q", 400), None),
    (TS * 3, None),
    (TS[:-1], None),
    (TS * 3 + b"\x47", 4 * 188),
    (TS * 4 + b"y" * 187, None),
    (TS * 5 + b"y", 6 * 188),  # the first five are looked at
    (b"\xff\xf1", None),
    (b"\xff\xfb", None),
    (b"\xff\xdb\0\0", None),
    (b"\xfe\xfb\x90\0", None),
    (b"ID4\4\0\0\0\0\0\x7f", None),
    (b"text", None),
    (b"", None),
]
CASES = {
    "mp3": MP3, "aac": AAC, "ogg": OGG, "flv": FLV, "program stream": PROGRAM_STREAM, "wav and aiff": WAV, "avi": AVI,
    "mp4": MP4, "matroska": MATROSKA, "others": OTHERS,
}  # fmt: skip


@pytest.mark.parametrize(
    ("content", "end"),
    [pytest.param(*case, id=f"{name} {i}") for name, many in CASES.items() for i, case in enumerate(many)],
)
def test_where_a_file_ends(content, end):
    assert end_of(content) == end


def test_a_file_on_disk_is_named_with_its_size(tmp_path):
    content = box(b"ftyp", 12, b"mp42") + box(b"mdat", 12, b"1234")
    (tmp_path / "f.mp4").write_bytes(content[:-4])
    with pytest.raises(Unreadable, match=r"f\.mp4 has 20 bytes but its own lengths end at byte 24 or later") as caught:
        check_whole(str(tmp_path / "f.mp4"), "f.mp4")
    assert caught.value.kind == "cut off"
