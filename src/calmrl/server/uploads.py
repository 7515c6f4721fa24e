"""Pictures and sounds that a client sends, checked before anything is decoded.

FFmpeg also reads play lists, and a play list names further files or addresses. So sound is let through only if its
first bytes are those of a container that holds its own samples.
"""

import io
import warnings
from collections.abc import Mapping
from dataclasses import dataclass, field

from starlette.datastructures import UploadFile
from starlette.exceptions import HTTPException
from starlette.requests import Request

from calmrl.errors import InputError, need
from calmrl.server.limits import Limits

PICTURES = ("PNG", "JPEG", "WEBP", "GIF", "BMP", "TIFF")
KIND_OF = {"text": "text", "image": "image", "sound": "audio"}  # names that stand for a modality of a kind
MOST_FILES = 8
SUFFIXES = {
    "wav": ".wav", "aiff": ".aiff", "mov": ".m4a", "flac": ".flac", "ogg": ".ogg", "matroska": ".webm", "mp3": ".mp3",
    "aac": ".aac",
}  # fmt: skip
TAG_BYTES = 10  # of the header of an ID3 tag


@dataclass
class Form:
    """A multipart form: its fields in order, and the bytes of its files by name."""

    fields: list[tuple[str, str]] = field(default_factory=list)
    files: dict[str, bytes] = field(default_factory=dict)


async def read_form(request: Request) -> Form:
    """The form of a request; each file has a name of its own."""
    kind = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    if kind != "multipart/form-data":
        raise HTTPException(415, f"send multipart/form-data with the files image and sound; got {kind or 'no type'}")
    form = Form()
    async with request.form(max_files=MOST_FILES, max_fields=30, max_part_size=16_384) as parts:
        for name, part in parts.multi_items():
            if not isinstance(part, UploadFile):
                form.fields.append((name, part))
            elif name in form.files:
                raise InputError(f"the file {name[:80]!r} is given twice; give it once")
            else:
                form.files[name] = await part.read()
    return form


def modality_named(name: str, kinds: Mapping[str, str]) -> str:
    """The modality of that name; for text, image and sound also the first one of that kind."""
    if name in kinds or name not in KIND_OF:
        return name
    return next((modality for modality, kind in kinds.items() if kind == KIND_OF[name]), name)


def checked_files(files: Mapping[str, bytes], kinds: Mapping[str, str], limits: Limits) -> dict[str, bytes]:
    """The files of a form, small enough to be decoded."""
    checks = {"image": check_picture, "audio": check_sound}
    checked = {}
    for name, content in files.items():
        kind = kinds.get(modality_named(name, kinds))
        if kind not in checks:
            names = [modality for modality, kind in kinds.items() if kind in checks]
            raise InputError(f"no modality takes the file {name[:80]!r}; name it image, sound, or {', '.join(names)}")
        checked[name] = checks[kind](content, limits)
    return checked


def suffix_of(content: bytes) -> str:
    """The suffix that a checked file should have."""
    container = container_of(content)
    if container is not None:
        return SUFFIXES[container]
    image = need("PIL.Image", "media", "Reading a picture")
    with image.open(io.BytesIO(content), formats=PICTURES) as picture:
        return f".{picture.format.lower()}"


def check_picture(content: bytes, limits: Limits) -> bytes:
    """The bytes of a picture whose header says that it is not too large."""
    image = need("PIL.Image", "media", "Reading a picture")
    if not content:
        raise InputError("the picture is empty; send a file with something in it")
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", image.DecompressionBombWarning)  # our own limit is below, and stricter
            with image.open(io.BytesIO(content), formats=PICTURES) as picture:
                width, height = picture.size
    except image.DecompressionBombError:
        raise HTTPException(413, _too_many_pixels(limits)) from None
    except (image.UnidentifiedImageError, OSError, SyntaxError, ValueError, EOFError, OverflowError):
        raise InputError(f"the picture cannot be read; send one of {', '.join(PICTURES)}") from None
    if width * height > limits.pixels:
        raise HTTPException(413, f"{_too_many_pixels(limits)}; got {width} x {height}")
    return content


def _too_many_pixels(limits: Limits) -> str:
    return f"the picture has more than {limits.pixels / 1e6:g} million pixels"


def check_sound(content: bytes, limits: Limits) -> bytes:
    """The bytes of a sound that is not too long, without the tags before it."""
    if not content:
        raise InputError("the sound is empty; send a file with something in it")
    content = without_tags(content)
    container = container_of(content)
    if container is None:
        raise InputError("the sound cannot be read; send WAV, MP3, FLAC, Ogg, M4A, AAC, AIFF or WebM")
    seconds = sound_seconds(content, container, limits.sound_seconds)
    if seconds > limits.sound_seconds:
        raise HTTPException(413, f"the sound is longer than {limits.sound_seconds:g} s; send a part of it")
    return content


def without_tags(content: bytes) -> bytes:
    """Without ID3 tags: FFmpeg looks behind them, so that a play list could hide there."""
    while content[:3] == b"ID3" and len(content) > TAG_BYTES:
        size = 0
        for byte in content[6:10]:
            size = size << 7 | byte & 0x7F
        content = content[TAG_BYTES + size :]
    return content.lstrip(b"\0") if content[:1] == b"\0" and content[4:8] != b"ftyp" else content


def container_of(content: bytes) -> str | None:
    """FFmpeg's name of the container that the first bytes announce."""
    start = content[:12]
    if start[:4] in (b"RIFF", b"RF64") and start[8:] == b"WAVE":
        return "wav"
    if start[:4] == b"FORM" and start[8:] in (b"AIFF", b"AIFC"):
        return "aiff"
    if start[4:8] == b"ftyp":
        return "mov"
    named = {b"fLaC": "flac", b"OggS": "ogg", b"\x1aE\xdf\xa3": "matroska"}
    if start[:4] in named:
        return named[start[:4]]
    if len(start) == 12 and start[0] == 0xFF and start[1] & 0xE0 == 0xE0:
        return "aac" if start[1] & 0xF6 == 0xF0 else "mp3"  # layer 0 is ADTS
    return None


def sound_seconds(content: bytes, container: str, most: float) -> float:
    """How long a sound is by its packets, without decoding them; stops counting beyond `most`."""
    av = need("av", "media", "Reading a sound")
    end = 0.0
    try:
        with av.open(io.BytesIO(content), format=container) as file:
            if not file.streams.audio:
                raise InputError("the file holds no sound")
            stream = file.streams.audio[0]
            clock = 0.0  # for packets without a time
            for packet in file.demux(stream):
                if packet.time_base is None or not packet.size:
                    continue
                length = float((packet.duration or 0) * packet.time_base)
                clock += length
                begin = float((packet.pts - (stream.start_time or 0)) * packet.time_base) if packet.pts else 0.0
                end = max(end, begin + length, clock)
                if end > most:
                    break
    except (av.error.FFmpegError, ValueError, OverflowError) as error:
        if isinstance(error, InputError):
            raise
        raise InputError("the sound cannot be read; it is damaged") from None
    if end == 0.0:
        raise InputError("the sound has no samples")
    return end
