"""Where streams and containers end by their own lengths, byte by byte, on files of a few bytes."""

from __future__ import annotations

import io
import struct

import pytest

from calmrl.data.media import whole_file as packets
from calmrl.data.media import whole_file as whole
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


def end(rule, content: bytes) -> int | None:
    return rule(io.BytesIO(content), len(content))


# ---- MPEG audio


def mpeg_frame(one: int, two: int) -> int | None:
    """The length by the standard: 384 samples in layer 1, 1152 in layer 2, 1152 or 576 in layer 3."""
    version, layer = {0b11: 1, 0b10: 2, 0b00: 2.5}.get(one >> 3 & 3), {3: 1, 2: 2, 1: 3}.get(one >> 1 & 3)
    index, at, padding = two >> 4, two >> 2 & 3, bool(two & 2)
    if one < 0xE0 or version is None or layer is None or index in (0, 15) or at == 3:
        return None
    hertz = {1: 1, 2: 2, 2.5: 4}
    rate = (44100, 48000, 32000)[at] // hertz[version]
    bits = int(KBITS[version == 1, layer].split()[index - 1]) * 1000
    if layer == 1:
        return (384 // 32 * bits // rate + padding) * 4
    samples = 1152 if layer == 2 or version == 1 else 576
    return samples // 8 * bits // rate + padding


def test_every_header_of_mpeg_audio():
    for one in range(256):
        for two in range(256):
            assert packets._mpeg_frame(bytes([0xFF, one, two, 0])) == mpeg_frame(one, two), (one, two)
    assert packets._mpeg_frame(b"\xfe\xfb\x90\0") is None
    assert {key: tuple(map(int, rates.split())) for key, rates in KBITS.items()} == packets.BITRATES
    assert packets.RATES == {3: (44100, 48000, 32000), 2: (22050, 24000, 16000), 0: (11025, 12000, 8000)}


FRAME = b"\xff\xfb\x90\0"  # 128 kbit/s at 44.1 kHz: 417 bytes


def frame(start: bytes = b"") -> bytes:
    return (FRAME + start).ljust(417, b"\0")


def id3(length: int) -> bytes:
    parts = [length >> shift & 0x7F for shift in (21, 14, 7, 0)]
    return b"ID3\4\0\0" + bytes(parts) + b"x" * min(length, 100_000)


def test_frames_of_mp3():
    assert end(packets.mp3_end, frame() * 3) == 3 * 417
    assert end(packets.mp3_end, (frame() * 3)[:-1]) == 3 * 417
    assert end(packets.mp3_end, frame() * 3 + b"\xff\xfb\x90") == 3 * 417  # no whole header
    assert end(packets.mp3_end, frame() * 2 + FRAME) == 3 * 417
    assert end(packets.mp3_end, frame() + b"TAG!") is None
    assert end(packets.mp3_end, id3(5) + id3(300) + frame()) == 15 + 310 + 417
    assert end(packets.mp3_end, id3(16_384 + 129) + frame()) == 10 + 16_513 + 417
    assert end(packets.mp3_end, id3(2_097_152)[:40]) == 10 + 2_097_152
    assert end(packets.mp3_end, b"ID3\4\0\0\0\0\0") is None  # half a tag is no frame


def xing(name: bytes, flags: int, *numbers: int) -> bytes:
    return b"\0" * 32 + name + struct.pack(f">I{len(numbers)}I", flags, *numbers)


@pytest.mark.parametrize(
    ("head", "expected"),
    [
        (xing(b"Xing", 3, 11, 5000), 5000),
        (xing(b"Info", 3, 11, 5000), 5000),
        (xing(b"Info", 2, 5000, 11), 5000),
        (xing(b"Info", 0xF, 11, 5000), 5000),
        (xing(b"Info", 1, 11, 5000), None),
        (xing(b"Infx", 3, 11, 5000), None),
    ],
)
def test_the_length_in_a_xing_header(head, expected):
    assert packets._xing_bytes(head) == expected
    whole = end(packets.mp3_end, id3(5) + frame(head) + frame())
    assert whole == 15 + (2 * 417 if expected is None else expected)
    if expected is not None:  # of the first frame only
        assert end(packets.mp3_end, frame() + frame(head)) == 2 * 417


def test_a_xing_header_that_is_not_whole():
    head = xing(b"Xing", 3, 11, 5000)
    assert len(head) == 32 + 16
    assert packets._xing_bytes(head[:-1]) is None
    assert packets._xing_bytes(b"Xing" + head[36:]) == 5000
    assert packets._xing_bytes(b"") is None


# ---- AAC


def adts(length: int) -> bytes:
    """All other bits of the header are set."""
    return bytes([0xFF, 0xF9, 0xFF, 0xFC | length >> 11, length >> 3 & 0xFF, (length & 7) << 5 | 0x1F, 0xFF])


@pytest.mark.parametrize("length", [7, 8, 0x555, 0xAAA, 0x1555, 0x1FFF])
def test_frames_of_aac(length):
    content = adts(length).ljust(length, b"\0")
    assert end(packets.adts_end, content * 2) == 2 * length
    assert end(packets.adts_end, content + adts(length)) == 2 * length
    for rest in (1, 6):
        assert end(packets.adts_end, content + b"\xff" * rest) == length + rest + 1
    assert end(packets.adts_end, content + b"\0" * 7) is None


def test_what_is_no_frame_of_aac():
    assert end(packets.adts_end, adts(6) + b"\0" * 9) is None
    for first, second in ((0xFE, 0xF1), (0xFF, 0xE1), (0xFF, 0xF3), (0xFF, 0xF5)):
        assert end(packets.adts_end, bytes([first, second]) + adts(9)[2:] + b"\0\0") is None
    for second in (0xF0, 0xF1, 0xF8, 0xF9):
        assert end(packets.adts_end, bytes([0xFF, second]) + adts(9)[2:] + b"\0\0") == 9


# ---- Ogg, FLV, MPEG program streams


def page(stream: int, flags: int, *lengths: int) -> bytes:
    head = b"OggS\0" + bytes([flags]) + b"\xff" * 8 + struct.pack("<I", stream) + b"\xff" * 8 + bytes([len(lengths)])
    return head + bytes(lengths) + b"x" * sum(lengths)


def test_pages_of_ogg():
    first, last = page(7, 2, 5, 6), page(7, 4, 200)
    assert len(first) == 27 + 2 + 11
    size = len(first + last)
    assert end(packets.ogg_end, first + last) == size
    assert end(packets.ogg_end, (first + last)[:-1]) == size
    assert end(packets.ogg_end, first) == len(first) + 1  # still open
    assert end(packets.ogg_end, page(7, 0xFB, 3)) == 31 + 1
    assert end(packets.ogg_end, first + page(8, 2) + last) == size + 27 + 1
    assert end(packets.ogg_end, first + page(8, 2) + last + page(8, 4)) == size + 54
    assert end(packets.ogg_end, page(7 << 24, 2) + page(7, 4)) == 54 + 1  # streams are told apart by all their bytes


def test_what_follows_the_pages_of_ogg():
    closed = page(7, 4, 3)
    size = len(closed)
    assert end(packets.ogg_end, closed + b"g" * 27) is None
    assert end(packets.ogg_end, closed + b"g" * 40) is None
    assert end(packets.ogg_end, closed + b"g" * 26) == size + 26 + 1
    assert end(packets.ogg_end, closed + closed[:26]) == size + 26 + 1
    assert end(packets.ogg_end, closed + b"\0" * 5) == size + 5 + 1
    assert end(packets.ogg_end, closed + b"\0" * 27) == size + 27 + 1


def tag(length: int) -> bytes:
    return b"\x09" + length.to_bytes(3, "big") + b"\xff" * 7 + b"x" * length + b"\0" * 4


def test_tags_of_flv():
    start = b"FLV\1\5\0\0\0\x09\0\0\0\0"
    content = start + tag(5) + tag(0x010203)
    assert end(packets.flv_end, content) == len(content)
    assert end(packets.flv_end, content[:-1]) == len(content)
    assert end(packets.flv_end, start) == 13
    assert end(packets.flv_end, start + tag(5)[:10]) == 13 + 20
    assert end(packets.flv_end, start + tag(5)[:11]) == 13 + 20
    assert end(packets.flv_end, start + b"\x09") == 13 + 15


def test_packets_of_a_program_stream():
    second = packets.PACK + b"\x44" + b"\0" * 8 + b"\xfb" + b"\xff" * 3  # MPEG-2, three bytes of stuffing
    first = packets.PACK + b"\x21" + b"\0" * 7
    packet = b"\0\0\1\xe0\1\2" + b"x" * 0x102
    system, stop = b"\0\0\1\xbb\0\1x", packets.END_CODE
    content = second + system + packet + first + stop
    assert end(packets.program_stream_end, content) == len(content)
    assert end(packets.program_stream_end, content + b"\0\0\1") == len(content)
    assert end(packets.program_stream_end, (second + packet)[:-1]) == len(second + packet)
    for wrong in (b"\0\0\1\xb8", b"\0\0\2\xe0", b"abcd"):
        assert end(packets.program_stream_end, first + wrong) is None
    assert end(packets.program_stream_end, packets.PACK) == 12
    assert end(packets.program_stream_end, second[:5]) == 14
    assert end(packets.program_stream_end, second[:13]) == 14
    assert end(packets.program_stream_end, second[:14]) == 17
    assert end(packets.program_stream_end, packets.PACK + b"\x84" + b"\0" * 7) == 12
    assert end(packets.program_stream_end, packet[:5]) == 6
    assert end(packets.program_stream_end, packet[:6]) == 6 + 0x102


# ---- containers with a length of the whole


def chunk(name: bytes, body: bytes, form: str = "<I", length: int | None = None) -> bytes:
    said = len(body) if length is None else length
    return name + struct.pack(form, said) + body + b"\0" * (len(body) % 2)


def wav(*chunks: bytes, name: bytes = b"RIFF") -> bytes:
    return name + struct.pack("<I", 4 + sum(map(len, chunks))) + b"WAVE" + b"".join(chunks)


LONG = chunk(b"ds64", struct.pack("<QQQ", 1, 70, 3))


@pytest.mark.parametrize(
    ("content", "expected"),
    [
        (wav(chunk(b"fmt ", b"123"), chunk(b"data", b"x" * 9)), 12 + 12 + 8 + 9),
        (wav(chunk(b"fmt ", b"1234"), chunk(b"data", b"x" * 9, length=90)), 12 + 12 + 8 + 90),
        (wav(chunk(b"data", b"xy"), chunk(b"data", b"xyz")), 12 + 8 + 2),
        (wav(chunk(b"data", b"xy", length=0)), None),
        (wav(chunk(b"data", b"xy", length=0xFFFFFFFF)), None),
        (wav(LONG, chunk(b"data", b"xy", length=0xFFFFFFFF)), 12 + 32 + 8 + 70),
        (wav(LONG, chunk(b"data", b"xy")), 12 + 32 + 8 + 2),
        (wav(LONG, chunk(b"data", b"", length=0)), None),
        (wav(chunk(b"data", b"", length=6)), 12 + 8 + 6),
        (wav(chunk(b"fmt ", b"12")), 12 + 10 + 1),
        (wav(chunk(b"fmt ", b"12"), b"data123"), 12 + 10 + 7 + 1),
    ],
)
def test_chunks_of_wav(content, expected):
    assert end(whole._wav_end, content) == expected


def form(*chunks: bytes) -> bytes:
    return b"FORM" + struct.pack(">I", 4 + sum(map(len, chunks))) + b"AIFF" + b"".join(chunks)


@pytest.mark.parametrize(
    ("content", "expected"),
    [
        (form(chunk(b"COMM", b"123", ">I"), chunk(b"SSND", b"x" * 9, ">I")), 12 + 12 + 8 + 9),
        (form(chunk(b"SSND", b"", ">I", 0)), None),
        (form(chunk(b"SSND", b"", ">I", 0xFFFFFFFF)), None),
        (form(chunk(b"COMM", b"12", ">I")), 22 + 1),
    ],
)
def test_chunks_of_aiff(content, expected):
    assert end(whole._aiff_end, content) == expected


@pytest.mark.parametrize(
    ("content", "expected"),
    [
        (chunk(b"RIFF", b"AVI 1234"), 16),
        (chunk(b"RIFF", b"AVI 1234") + chunk(b"RIFF", b"AVIX"), 28),
        (chunk(b"RIFF", b"AVI 1234") + chunk(b"RIFF", b"AVIX")[:-1], 28),
        (chunk(b"RIFF", b"AVI 1234") + chunk(b"RIFF", b"AVIX123"), 16 + 16),
        (chunk(b"RIFF", b"AVI 1234") + chunk(b"RIFF", b"AVIX123")[:-1], 31),  # without the byte of padding
        (chunk(b"RIFF", b"AVI 1234") + chunk(b"RIFF", b"AVIX123")[:-2], 32),
        (chunk(b"RIFF", b"AVI 1234") + b"idx1" + b"\0" * 9, 16),
        (chunk(b"RIFF", b"AVI 1234") + b"RIFF123", 16),
        (chunk(b"RIFF", b"AVI 1234") + b"RIFF" + struct.pack("<I", 4), 28),
        (chunk(b"RIFF", b"AVI 1234", length=0), None),
        (chunk(b"RIFF", b"AVI 1234", length=0xFFFFFFFF), None),
    ],
)
def test_chunks_of_avi(content, expected):
    assert end(whole._riff_end, content) == expected


def box(name: bytes, length: int, body: bytes = b"") -> bytes:
    return struct.pack(">I", length) + name + body


@pytest.mark.parametrize(
    ("content", "expected"),
    [
        (box(b"ftyp", 12, b"mp42") + box(b"mdat", 8), 20),
        (box(b"ftyp", 12, b"mp42") + box(b"mdat", 90), 102),
        (box(b"ftyp", 8) + box(b"mdat", 1, struct.pack(">Q", 70)), 78),
        (box(b"ftyp", 8) + box(b"mdat", 0, b"x" * 9), None),
        (box(b"ftyp", 8) + box(b"mdat", 7, b"x" * 9), None),
        (box(b"ftyp", 8) + box(b"mdat", 2, b"x" * 9), None),
        (box(b"ftyp", 8) + box(b"mdat", 1), None),
        (box(b"ftyp", 9, b"x") + b"1234567", 9),
    ],
)
def test_boxes_of_mp4(content, expected):
    assert end(whole._boxes_end, content) == expected


EBML = b"\x1aE\xdf\xa3"
SEGMENT = b"\x18\x53\x80\x67"


@pytest.mark.parametrize(
    ("content", "expected"),
    [
        (EBML + b"\x82xy" + SEGMENT + b"\x83xyz", 7 + 8),
        (EBML + b"\x82xy" + SEGMENT + b"\x40\x09xyz", 7 + 6 + 9),
        (EBML + b"\x82xy" + SEGMENT + b"\x83xyz" + b"more", 7 + 8),
        (EBML + b"\x82xy" + SEGMENT + b"\xffxyz", None),
        (EBML + b"\x82xy" + SEGMENT + b"\x01\xff\xff\xff\xff\xff\xff\xffxyz", None),
        (EBML + b"\x82xy" + SEGMENT + b"\x01\0\0\0\0\0\1\2", 7 + 12 + 0x102),
        (EBML + b"\x82xy" + SEGMENT, 11 + 1),
        (EBML + b"\x82xy" + SEGMENT + b"\x40", 12 + 1),
        (EBML + b"\x82xy" + b"\0\0\0", 10 + 1),
        (EBML + b"\x82xy", 7 + 1),
        (EBML + b"\x89xy", 5 + 9),
        (EBML + b"\x82xy" + b"\xec\x81x" + SEGMENT + b"\x80", 10 + 5),
    ],
)
def test_the_segment_of_matroska(content, expected):
    assert end(whole._matroska_end, content) == expected


@pytest.mark.parametrize("length", [400, 0])
def test_the_length_in_asf(length):
    content = whole.ASF + b"x" * 14 + whole.ASF_FILE + b"x" * 24 + struct.pack("<Q", length) + b"x" * 30
    assert end(whole._asf_end, content) == (length or None)
    assert end(whole._asf_end, whole.ASF + b"x" * 90) is None
    assert end(whole._asf_end, whole.ASF_FILE + b"x" * 24 + struct.pack("<Q", 300)) == 300


def test_packets_of_a_transport_stream():
    packet = b"\x47" + b"x" * 187
    assert end(whole._ts_end, packet * 3) == 3 * 188
    assert end(whole._ts_end, packet) == 188
    assert end(whole._ts_end, packet[:-1]) is None
    assert end(whole._ts_end, packet * 3 + b"\x47") == 4 * 188
    assert end(whole._ts_end, packet * 4 + b"y" * 188) is None
    assert end(whole._ts_end, packet * 5 + b"y" * 188) == 6 * 188  # the first five are looked at
    assert end(whole._ts_end, b"y" + packet * 3) is None


@pytest.mark.parametrize(
    ("start", "rule"),
    [
        (b"RIFF1234WAVE", whole._wav_end),
        (b"RF641234WAVE", whole._wav_end),
        (b"RIFF1234AVI ", whole._riff_end),
        (b"FORM1234AIFF", whole._aiff_end),
        (b"\0\0\0\x18ftypmp42", whole._boxes_end),
        (b"\0\0\0\x18moov", whole._boxes_end),
        (whole.ASF, whole._asf_end),
        (whole.ASF[:-1], None),
        (b"\x47abc", whole._ts_end),
        (EBML, whole._matroska_end),
        (b"OggS\0", packets.ogg_end),
        (packets.PACK, packets.program_stream_end),
        (b"FLV\1", packets.flv_end),
        (b"FLV\2", None),
        (b"\xff\xf1\0", packets.adts_end),
        (b"\xff\xf9\0", packets.adts_end),
        (b"\xff\xf1", None),
        (b"\xff\xfb\0", packets.mp3_end),
        (b"\xff\xe3\0", packets.mp3_end),
        (b"\xff\xfb", None),
        (b"\xff\xdb\0", None),
        (b"\xfe\xfb\0", None),
        (b"\xfe\xf1\0", None),
        (b"ID3", packets.mp3_end),
        (b"ID4", None),
        (b"", None),
    ],
)
def test_the_first_bytes_choose_the_rule(start, rule):
    assert whole._ends_of(start) is rule


def test_a_file_may_be_longer_than_it_says_but_not_shorter(tmp_path):
    content = box(b"ftyp", 12, b"mp42") + box(b"mdat", 12, b"1234")
    for there in (content, content + b"1", b"text"):
        check_whole(there, "f.mp4")
    with pytest.raises(Unreadable, match=r"f\.mp4 has 23 bytes but its own lengths end at byte 24 or later"):
        check_whole(content[:-1], "f.mp4")
    (tmp_path / "f.mp4").write_bytes(content[:-4])
    with pytest.raises(Unreadable, match="has 20 bytes but its own lengths end at byte 24") as caught:
        check_whole(str(tmp_path / "f.mp4"), "f.mp4")
    assert caught.value.kind == "cut off"
