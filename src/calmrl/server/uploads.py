"""Images and audio that a client sends, checked before anything is decoded, and the items that are made of them.

FFmpeg also reads play lists, and a play list names further files or addresses. So audio is let through only if its
first bytes are those of a container that holds its own samples.
"""

import io
import itertools
import json
import re
import shutil
import threading
import uuid
import warnings
from collections.abc import Iterable, Mapping
from pathlib import Path, PurePath
from typing import Any

from starlette.exceptions import HTTPException

from calmrl.data.media.documents import drawing, heif
from calmrl.data.media.images import HEAD
from calmrl.errors import InputError, need
from calmrl.server.limits import Limits
from calmrl.server.schemas import FILES, ItemFields

IMAGES = ("PNG", "JPEG", "WEBP", "GIF", "BMP", "TIFF", "AVIF")  # and HEIC
KIND_OF = {"text": "text", "image": "image", "sound": "audio"}  # names that stand for a modality of a kind
SUFFIXES = {
    "wav": ".wav", "aiff": ".aiff", "mov": ".m4a", "flac": ".flac", "ogg": ".ogg", "matroska": ".webm", "mp3": ".mp3",
    "aac": ".aac",
}  # fmt: skip
AVIF = re.compile(rb".{4}ftyp.{0,52}avi[fs]", re.DOTALL)
TAG_BYTES = 10  # of the header of an ID3 tag
FOLDER = "added"  # inside the index: a folder per item, with its files and a manifest of one row
MANIFEST = "item.jsonl"
NAME_LETTERS = 60  # of a name that is made of a text
UNSAID = re.compile(r"[\x00-\x1f\x7f/\\]|\.[A-Za-z0-9]{1,5}$")  # control characters, separators, the ending of a file
CHANGING = threading.Lock()  # one change at a time


def add_item(
    index: Any,
    fields: ItemFields,
    files: Mapping[str, bytes],
    kinds: Mapping[str, str],
    limits: Limits,
    named: Iterable[str] = (),
) -> str:
    """Put an item into the collection and return its id: the client's, or what its first file, in `named`, or its text says."""
    media = {modality_named(name, kinds): content for name, content in checked_files(files, kinds, limits).items()}
    if not media and fields.text is None:
        raise InputError("the item is empty; give text, or the files image and sound")
    if "://" in str(index.path):
        raise InputError("this index is not on the disk of the server, so that files cannot be put into it")
    row: dict[str, Any] = {"id": fields.id.strip() if fields.id else _free_id(index, [*named, fields.text or ""])}
    if fields.label is not None:
        row["labels"] = fields.label.strip()
    if fields.text is not None:
        row["text"] = row[modality_named("text", kinds)] = fields.text.strip()
    folder = Path(index.path) / FOLDER / uuid.uuid4().hex
    folder.mkdir(parents=True)
    try:
        for name, content in media.items():
            file = folder / f"{len(row)}{suffix_of(content)}"
            file.write_bytes(content)
            row[name] = file.name
        manifest = folder / MANIFEST
        manifest.write_text(json.dumps(row) + "\n", encoding="utf-8")
        with CHANGING:
            change = index.add(manifest, refit=False)  # a request does not wait for that
        if row["id"] not in change.added:
            raise InputError(f"the item cannot be used: {'; '.join(change.problems) or 'nothing of it can be read'}")
    except BaseException:
        shutil.rmtree(folder)
        raise
    return row["id"]


def _free_id(index: Any, texts: Iterable[str]) -> str:
    """The first of these that says something, short, and with a number where an item is called so already."""
    said = (" ".join(UNSAID.sub(" ", PurePath(text).name).split())[:NAME_LETTERS].strip() for text in texts)
    name = next(filter(None, said), "item")
    return next(
        id for number in itertools.count(1) if not _is_item(index, id := f"{name} {number}" if number > 1 else name)
    )


def _is_item(index: Any, id: str) -> bool:
    try:
        index.item(id)
    except InputError:
        return False
    return True


def rename_item(index: Any, id: str, new: str) -> None:
    """Call an item that was added here otherwise; others are called what their files or their source say."""
    with CHANGING:
        folder = added_folder(index, index.item(id))
        if folder is None:
            raise InputError(f"{id!r} was not added on this page; rename its file, or its row, and run calmrl add")
        if _is_item(index, new):
            raise InputError(f"there is an item {new!r} already; choose another name")
        manifest = folder / MANIFEST
        before = manifest.read_text(encoding="utf-8")
        manifest.write_text(json.dumps({**json.loads(before), "id": new}) + "\n", encoding="utf-8")
        try:
            index.add(manifest, prune=True, refit=False)  # one commit: the new name comes and the old one goes
        except BaseException:
            manifest.write_text(before, encoding="utf-8")
            raise


def remove_item(index: Any, id: str) -> None:
    """Take an item out of the collection; its files are deleted only if they were uploaded."""
    with CHANGING:
        folder = added_folder(index, index.item(id))
        index.remove([id])
        if folder is not None:
            shutil.rmtree(folder)


def added_folder(index: Any, item: Any) -> Path | None:
    """The folder inside the index with the files of an item that was uploaded; None for others."""
    folder = Path(item.root)
    return folder if folder.parent == Path(index.path).resolve() / FOLDER else None


def modality_named(name: str, kinds: Mapping[str, str]) -> str:
    """The modality of that name; for image and sound also the only one of that kind, for text the first."""
    if name in kinds or name not in KIND_OF:
        return name
    found = [modality for modality, kind in kinds.items() if kind == KIND_OF[name]]
    if len(found) > 1 and name in FILES:
        raise InputError(f"{name} could be any of {', '.join(found)}; name the file after one of them")
    return found[0] if found else name


def checked_files(files: Mapping[str, bytes], kinds: Mapping[str, str], limits: Limits) -> dict[str, bytes]:
    """The files of a form, small enough to be decoded."""
    checks = {"image": check_image, "audio": check_audio}
    checked = {}
    for name, content in files.items():
        kind = kinds.get(modality_named(name, kinds))
        if kind not in checks:
            names = [modality for modality, kind in kinds.items() if kind in checks]
            known = ", ".join(dict.fromkeys((*FILES, *names)))
            raise InputError(f"no modality takes the file {name[:80]!r}; name it one of {known}")
        checked[name] = checks[kind](content, limits)
    return checked


def suffix_of(content: bytes) -> str:
    """The suffix that a checked file should have."""
    container = container_of(content)
    if container is not None and not AVIF.match(content) and drawing(content[:HEAD]) is not heif:
        return SUFFIXES[container]
    with _picture(content) as image:
        return {"HEIF": ".heic"}.get(image.format, f".{image.format.lower()}")


def _picture(content: bytes) -> Any:
    """A picture of which nothing but the header is decoded yet."""
    if drawing(content[:HEAD]) is heif:
        return heif(content)
    return need("PIL.Image", "media", "Reading a picture").open(io.BytesIO(content), formats=IMAGES)


def check_image(content: bytes, limits: Limits) -> bytes:
    """The bytes of an image whose header says that it is not too large."""
    pillow = need("PIL.Image", "media", "Reading a picture")
    if not content:
        raise InputError("the picture is empty; send a file with something in it")
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", pillow.DecompressionBombWarning)  # our own limit is below, and stricter
            with _picture(content) as image:
                width, height = image.size
    except pillow.DecompressionBombError:
        raise HTTPException(413, _too_many_pixels(limits)) from None
    except (pillow.UnidentifiedImageError, OSError, SyntaxError, ValueError, EOFError, OverflowError, RuntimeError):
        raise InputError(f"the picture cannot be read; send one of {', '.join(IMAGES)}, HEIC") from None
    if width * height > limits.pixels:
        raise HTTPException(413, f"{_too_many_pixels(limits)}; got {width} x {height}")
    return content


def _too_many_pixels(limits: Limits) -> str:
    return f"the picture has more than {limits.pixels / 1e6:g} million pixels"


def check_audio(content: bytes, limits: Limits) -> bytes:
    """The bytes of audio that is not too long, without the tags before it."""
    if not content:
        raise InputError("the sound is empty; send a file with something in it")
    content = without_tags(content)
    container = container_of(content)
    if container is None:
        raise InputError("the sound cannot be read; send WAV, MP3, FLAC, Ogg, M4A, AAC, AIFF or WebM")
    seconds = audio_seconds(content, container, limits.audio_seconds)
    if seconds > limits.audio_seconds:
        raise HTTPException(413, f"the sound is longer than {limits.audio_seconds:g} s; send a part of it")
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


def audio_seconds(content: bytes, container: str, most: float) -> float:
    """How long audio is by its packets, without decoding them; stops counting beyond `most`."""
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
