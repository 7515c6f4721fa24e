"""Files that need more than Pillow and PyAV: SVG, HEIC and PDF as pictures; texts of PDF, HTML and Markdown; words in pictures.

Nothing but the file itself is opened, and it is drawn to a size of ours, whatever it asks for. What was read with effort (texts
of PDF, words in pictures) is kept in the user's cache by path, size and time of the file.
"""

from __future__ import annotations

import io
import re
import sqlite3
import threading
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from functools import lru_cache
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import numpy as np

from calmrl._support.parsing import PANIC, reason_of
from calmrl._support.places import cache_folder
from calmrl.data.media.problems import Unreadable, check_file, label_of
from calmrl.errors import InputError, MissingExtraError, need

TEXT_BYTES = 1 << 20  # a longer file is no text of an item
LETTERS = 1 << 20  # read of a PDF, page by page
DRAWN = 1024  # pixels of the longer side of a page or an SVG
SVG_BYTES = 20 << 20
SVG_UNITS = 100_000  # of a side
DPI = 96.0  # of CSS; resvg-py takes 0 by default, and refuses sizes in pt, mm or in
HEIF_BRANDS = (b"heic", b"heix", b"heim", b"heis", b"hevc", b"hevx", b"mif1", b"msf1")
ROOT_TAG = re.compile(r"<(?:\w+:)?svg\b[^>]*>", re.IGNORECASE)
LENGTH = r"""=\s*["']\s*([\d.]+)"""
OUTSIDE = re.compile(r"""(\bhref\s*=\s*)(?:"(?!\s*(?:#|data:))[^"]*"|'(?!\s*(?:#|data:))[^']*')""", re.IGNORECASE)
ENTITY = re.compile(r"""<!ENTITY[^>]*["'][^"'>]*[&<%]""", re.IGNORECASE)
CHARSET = re.compile(rb"""<meta[^>]{0,200}charset\s*=\s*["']?\s*([\w-]+)""", re.IGNORECASE)
FRONT_MATTER = re.compile(r"\A---\n.*?\n(?:---|\.\.\.)\n", re.DOTALL)
SURE_OF_TYPE = 0.8  # what puremagic gives where content and suffix agree, or the content is beyond doubt
SURE = 0.5  # of a line that OCR read, 0 to 1
_PDFIUM = threading.Lock()  # PDFium is not made for threads


# ---- pictures


def drawing(head: bytes) -> Callable[[Any], Any] | None:
    """What makes an image of Pillow of a path or bytes that begin so; None for what Pillow reads itself."""
    if head.startswith(b"%PDF-"):
        return first_page
    if head[4:8] == b"ftyp" and head[8:12] in HEIF_BRANDS and not re.search(b"avi[fs]", head[:64]):
        return heif
    if re.match(rb"(?:\xef\xbb\xbf)?\s*<", head) and re.search(rb"<(?:\w+:)?svg\b", head, re.IGNORECASE):
        return _svg
    return None


def heif(source: Any) -> Any:
    """A HEIC picture (its path or its bytes) as an image of Pillow, of which nothing but the header is decoded yet."""
    reader = need("pillow_heif", "files", "reading HEIC pictures")
    return reader.HeifImageFile(io.BytesIO(source) if isinstance(source, bytes) else source)


def _svg(source: Any) -> Any:
    """Files that it refers to are not read; only what is inside it is drawn."""
    resvg = need("resvg_py", "files", "reading SVG pictures")
    image = need("PIL.Image", "files", "reading SVG pictures")
    label = label_of(source)
    content = source if isinstance(source, bytes) else Path(source).read_bytes()
    if len(content) > SVG_BYTES:
        raise Unreadable("huge image", f"{label} has {len(content):,} bytes; an SVG is read up to {SVG_BYTES:,}")
    text = content.decode("utf-8-sig", "replace")
    if ENTITY.search(text):
        raise Unreadable("SVG with nested entities", label)
    width, height = _proportions(text, label)
    try:
        drawn = resvg.svg_to_bytes(svg_string=OUTSIDE.sub(r'\1""', text), width=width, height=height, dpi=DPI)
    except BaseException as error:
        if not isinstance(error, Exception) and type(error).__name__ != PANIC:
            raise
        raise Unreadable("damaged image", f"{label}: {reason_of(error)}") from error
    return image.open(io.BytesIO(bytes(drawn)), formats=("PNG",))


def _proportions(svg: str, label: str) -> tuple[int, int]:
    """(width, height) in pixels, the longer one DRAWN; a square where the file does not say its shape in numbers."""
    root = ROOT_TAG.search(svg)
    tag = root[0] if root else ""
    sides = [re.search(rf"\b{name}\s*{LENGTH}(?!\s*[\d.]*\s*%)", tag) for name in ("width", "height")]
    box = re.search(r"""\bviewBox\s*=\s*["']\s*[-\d.e]+[\s,]+[-\d.e]+[\s,]+([\d.]+)[\s,]+([\d.]+)""", tag)
    numbers = [side[1] for side in sides if side] if all(sides) else list(box.groups()) if box else []
    try:
        wide, high = (float(number) for number in numbers)
    except ValueError:
        wide = high = 1.0
    if not max(wide, high) <= SVG_UNITS:  # resvg would never come to an end
        raise Unreadable("huge image", f"{label} is {wide:g} x {high:g}; at most {SVG_UNITS:,} are drawn")
    scale = DRAWN / max(wide, high, 1e-9)
    return max(1, round(wide * scale)), max(1, round(high * scale))


def first_page(source: Any) -> Any:
    """The first page of a PDF (its path or its bytes) as an image of Pillow, on white."""
    with _pdf(source) as document:
        page = document[0]
        return page.render(scale=DRAWN / max(*page.get_size(), 1.0), may_draw_forms=False).to_pil()


@contextmanager
def _pdf(source: Any) -> Iterator[Any]:
    pdfium = need("pypdfium2", "files", "reading PDF")
    label = label_of(source)
    if not isinstance(source, bytes):
        check_file(str(source))
    try:
        with _PDFIUM, closing(pdfium.PdfDocument(source if isinstance(source, bytes) else str(source))) as document:
            if not len(document):
                raise Unreadable("PDF without pages", label)
            yield document
    except (InputError, MissingExtraError):
        raise
    except Exception as error:  # also of a PDF that asks for a password
        raise Unreadable("not decodable as PDF", f"{label}: {reason_of(error)}") from error


# ---- texts


def texts_of(file: Path) -> list[str]:
    """What is written in a text, Markdown, HTML or PDF file: one text, of a PDF one per page; none in a PDF of pictures.

    Examples
    --------
    >>> texts_of(Path("notes.md"))  # doctest: +SKIP
    ['Shopping apples, pears']
    """
    suffix = file.suffix.lower()
    check_file(str(file))
    if suffix == ".pdf":
        return remembered(file, "pdf", lambda: _pdf_texts(file))
    size = file.stat().st_size
    if size > TEXT_BYTES:
        raise Unreadable("text too long", f"{file.name} has {size} bytes")
    text = _decoded(file, suffix in (".html", ".htm"))
    if suffix in (".md", ".markdown"):
        text = need("markdown_it", "files", "reading Markdown").MarkdownIt().render(FRONT_MATTER.sub("", text))
    if suffix != ".txt":
        text = _without_tags(text)
    text = " ".join(text.split())
    if not text:
        raise Unreadable("empty file", f"{file.name} holds no text")
    return [text]


def _decoded(file: Path, is_html: bool) -> str:
    content = file.read_bytes()
    named = CHARSET.search(content[:2048]) if is_html else None
    try:
        return content.decode(named[1].decode() if named else "utf-8-sig").replace("\r\n", "\n")
    except LookupError as error:
        raise Unreadable("not a text", f"{file.name} says it is {error}; save it as UTF-8") from error
    except UnicodeDecodeError as error:
        detail = f"{file.name} is not {error.encoding.upper()} (byte {error.start}); save it as UTF-8"
        raise Unreadable("not a text", detail) from error


class _Said(HTMLParser):
    """Collects what a page shows: no scripts, no styles; descriptions of pictures count."""

    HIDDEN = ("script", "style", "template", "noscript")

    def __init__(self) -> None:
        super().__init__()
        self.parts: list[str] = []
        self.inside: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        if tag in self.HIDDEN:
            self.inside.append(tag)
        self.parts += [value for name, value in attrs if name == "alt" and value]

    def handle_endtag(self, tag: str) -> None:
        if tag in self.inside:
            self.inside.remove(tag)
        elif tag not in ("b", "i", "em", "strong", "a", "span", "code", "sub", "sup", "img"):
            self.parts.append(" ")

    def handle_data(self, data: str) -> None:
        if not self.inside:
            self.parts.append(data)


def _without_tags(page: str) -> str:
    parser = _Said()
    parser.feed(page)
    parser.close()
    return "".join(parser.parts)


def _pdf_texts(file: Path) -> list[str]:
    texts: list[str] = []
    with _pdf(file) as document:
        for page in document:
            text = " ".join(page.get_textpage().get_text_bounded().encode("utf-8", "ignore").decode().split())
            texts += [text] if text else []
            if sum(map(len, texts)) > LETTERS:
                break
    return texts


@lru_cache(maxsize=1)
def _reader() -> Any:
    rapidocr = need("rapidocr", "ocr", "reading words in pictures")
    need("onnxruntime", "ocr", "reading words in pictures")
    return rapidocr.RapidOCR(params={"Global.log_level": "error", "Global.text_score": SURE})


def words_in(file: Path) -> str:
    """What is written in a picture, or on the first page of a PDF, by OCR; empty if nothing is."""

    def read() -> list[str]:
        from calmrl.data.media.images import open_image  # which draws by this module

        found = _reader()(np.asarray(open_image(file, crop_alpha=False))[:, :, ::-1])
        return [" ".join(text.split()) for text in found.txts or () if text.strip()]

    return " ".join(remembered(file, "ocr", read))


def content_of(file: Path) -> str:
    """What a file holds, by its content: "ZIP archive" and the like."""
    magic = need("puremagic", "files", "telling files apart by content")
    try:
        if not file.stat().st_size:
            return "empty"
        found = magic.magic_file(str(file))
    except OSError:
        return "cannot be opened"
    except (ValueError, magic.PureError):
        return "unknown content"
    sure = next((match for match in found if match.confidence >= SURE_OF_TYPE), None)
    return "unknown content" if sure is None else sure.name or sure.mime_type or sure.extension


# ---- what was read before


def remembered(file: Path, what: str, read: Callable[[], list[str]]) -> list[str]:
    """What `read` gives of a file, kept in the user's cache until the file changes; where there can be no cache, read anew."""
    stat = file.stat()
    key = f"{what}\0{file.resolve()}\0{stat.st_size}\0{stat.st_mtime_ns}".encode("utf-8", "surrogateescape")
    place = cache_folder() / "texts.sqlite"
    try:
        place.parent.mkdir(parents=True, exist_ok=True)
        with closing(sqlite3.connect(place, timeout=10, isolation_level=None)) as database:
            database.execute("CREATE TABLE IF NOT EXISTS texts (key BLOB PRIMARY KEY, content TEXT) WITHOUT ROWID")
            row = database.execute("SELECT content FROM texts WHERE key = ?", (key,)).fetchone()
            if row is not None:
                return str(row[0]).split("\0") if row[0] else []
            texts = read()
            database.execute("INSERT OR REPLACE INTO texts VALUES (?, ?)", (key, "\0".join(texts)))
            return texts
    except (OSError, sqlite3.Error):
        return read()
