"""What requests take and what answers hold: models that FastAPI reads, checks, writes and describes."""

import math
import re
from collections.abc import Iterable, Mapping
from pathlib import PurePath
from typing import Any, ClassVar
from urllib.parse import parse_qsl, quote, unquote

from annotated_types import Ge, Le
from fastapi import UploadFile
from pydantic import (
    BaseModel,
    ConfigDict,
    Field,
    ValidationError,
    ValidationInfo,
    ValidatorFunctionWrapHandler,
    field_validator,
    model_validator,
)
from starlette.datastructures import UploadFile as SentFile

from calmrl._support.registry import lookup
from calmrl.errors import InputError
from calmrl.search.syntax import parse_query
from calmrl.server.limits import Limits

WHOLE = re.compile(r"\s*[0-9]{1,11}\s*")
LISTS = ("having", "lacking")  # parameters that may be given more than once
FILES = ("image", "sound")
# What a browser may show by itself. Everything else is sent as bytes to be saved, whatever its name says.
TYPES = {
    ".png": "image/png", ".jpg": "image/jpeg", ".jpeg": "image/jpeg", ".gif": "image/gif", ".webp": "image/webp",
    ".bmp": "image/bmp", ".avif": "image/avif", ".svg": "image/svg+xml",
    ".wav": "audio/wav", ".mp3": "audio/mpeg", ".flac": "audio/flac", ".ogg": "audio/ogg", ".oga": "audio/ogg",
    ".opus": "audio/ogg", ".m4a": "audio/mp4", ".aac": "audio/aac", ".weba": "audio/webm",
    ".mp4": "video/mp4", ".m4v": "video/mp4", ".webm": "video/webm", ".ogv": "video/ogg", ".mov": "video/quicktime",
    ".txt": "text/plain; charset=utf-8",
}  # fmt: skip
UNKNOWN_TYPE = "application/octet-stream"


class Params(BaseModel):
    """Parameters of an address or fields of a form: what is blank counts as not given, a mistake is a sentence."""

    model_config = ConfigDict(extra="forbid")
    bounds: ClassVar[Limits] = Limits()

    @model_validator(mode="before")
    @classmethod
    def _check_texts(cls, values: dict[str, Any]) -> dict[str, Any]:
        known = {name: None for name in cls.model_fields if name not in FILES}
        for name, value in values.items():
            for text in value if isinstance(value, list) else [value]:
                if isinstance(text, str):
                    lookup(known, name[:80], "parameter")
                    check_text(name, text, cls.bounds)
                elif name in known and isinstance(text, SentFile):
                    raise InputError(f"{name} takes text, not a file")
        return {name: value for name, value in values.items() if not isinstance(value, str) or value.strip()}

    @field_validator("*", mode="wrap")
    @classmethod
    def _explain(cls, value: Any, check: ValidatorFunctionWrapHandler, info: ValidationInfo) -> Any:
        """The number or truth value, or a sentence that says what it must be."""
        bounds = {type(bound): bound for bound in cls.model_fields[str(info.field_name)].metadata}
        try:
            if Ge not in bounds or WHOLE.fullmatch(str(value)):  # Pydantic also reads 7.0 and 1_0
                return check(value)
        except ValidationError:
            pass
        what = f"a whole number from {bounds[Ge].ge} to {bounds[Le].le}" if bounds else "true or false"
        raise InputError(f"{info.field_name} must be {what}; got {str(value)[:80]!r}")


class NoParams(Params):
    """The parameters of an address that takes none."""


class FilterParams(Params):
    """Which items are wanted at all."""

    having: list[str] = Field([], description="Modalities that were really observed, also separated by commas.")
    lacking: list[str] = Field([], description="Modalities that were not observed, also separated by commas.")
    label: str | None = Field(None, description="Only items with this label.")
    where: str | None = Field(None, description="A condition on the columns of the collection.")

    @field_validator(*LISTS, mode="before")
    @classmethod
    def _split(cls, texts: list[str]) -> list[str]:
        return [part.strip() for text in texts for part in text.split(",") if part.strip()]

    def filters(self) -> dict[str, Any]:
        """`having`, `lacking` and `where` of the collection; a label is a condition like others."""
        where = self.where
        if self.label is not None:
            of_label = "label = '{}'".format(self.label.replace("'", "''"))
            where = of_label if where is None else f"{of_label} and ({_balanced(where)})"
        return {"having": self.having or None, "lacking": self.lacking or None, "where": where}


class SearchParams(FilterParams):
    """A query and how many items to find; servers bound `k`."""

    text: str | None = Field(
        None, description='Words to search by; terms may have weights: 2:dog - fruit + "rock - paper".'
    )
    like: str | None = Field(None, description="The id of an item to search by.")
    k: int = 24
    hubs: bool = Field(False, description="Correct for items that are near to everything.")

    def weighted_words(self) -> list[tuple[float, str]]:
        """`2:dog - fruit` as (weight, words) pairs, as on the command line; a term is never a path here."""
        pairs = parse_query(self.text or "")
        if len(pairs) > self.bounds.terms:
            raise InputError(f"the query has {len(pairs)} terms; at most {self.bounds.terms} are allowed")
        return pairs


class BrowseParams(FilterParams):
    """Which page of the collection; servers bound `limit`."""

    offset: int = Field(0, ge=0, le=10**9, description="How many items to skip.")
    limit: int = 60


class ItemFields(Params):
    """The texts of a new item."""

    id: str | None = Field(None, description="By default what the first file is called, or what the text says.")
    text: str | None = None
    label: str | None = None


class NameFields(Params):
    """What an item is to be called."""

    id: str | None = Field(None, description="The new name.")


class Uploads(BaseModel):
    """The files of a form; one may also have the name of a modality."""

    model_config = ConfigDict(extra="allow")
    image: UploadFile | None = None
    sound: UploadFile | None = None

    def sent(self) -> dict[str, UploadFile]:
        """The files by the names of their fields."""
        files = {"image": self.image, "sound": self.sound, **(self.model_extra or {})}
        return {name: file for name, file in files.items() if file is not None}

    async def contents(self) -> dict[str, bytes]:
        """The bytes of every file by its name."""
        return {name: await file.read() for name, file in self.sent().items()}


def check_query(query: bytes) -> None:
    """Refuse the parameters of an address that cannot be read, or that are given twice."""
    try:
        pairs = parse_qsl(query.decode("ascii"), keep_blank_values=True, errors="strict", max_num_fields=100)
    except ValueError as error:
        raise InputError(f"the address cannot be read ({error}); encode its parameters as UTF-8") from None
    check_once(pairs)


def check_once(pairs: Iterable[tuple[str, Any]]) -> None:
    """Refuse a field or a file that is given twice, of which FastAPI would take the last."""
    seen = set()
    for name, value in pairs:
        if name in seen and name not in LISTS:
            called = name[:80] if isinstance(value, str) else f"the file {name[:80]!r}"
            raise InputError(f"{called} is given twice; give it once")
        seen.add(name)


def path_part(name: str, text: str, limits: Limits) -> str:
    """A part of the path, decoded once."""
    try:
        text = unquote(text, errors="strict")
    except UnicodeDecodeError:
        raise InputError(f"the {name} in the address is not UTF-8") from None
    check_text(name, text, limits)
    return text


def check_text(name: str, text: str, limits: Limits) -> None:
    """Refuse a text that is too long or has control characters."""
    if len(text) > limits.characters:
        raise InputError(f"{name} has {len(text)} characters; at most {limits.characters} are allowed")
    codes = [ord(letter) for letter in text if letter not in "\t\n\r"]
    if any(code < 32 or 0xD800 <= code <= 0xDFFF for code in codes):
        raise InputError(f"{name} contains control characters; send plain text")


def _balanced(condition: str) -> str:
    """A condition that closes only parentheses of its own, so that it cannot leave those around it."""
    depth, quotation = 0, ""
    for letter in condition:
        if quotation:
            quotation = "" if letter == quotation else quotation
        elif letter in "'\"":
            quotation = letter
        else:
            depth += (letter == "(") - (letter == ")")
        if depth < 0:
            break
    if depth or quotation:
        raise InputError("where has a parenthesis or a quote that is not closed, or one too many; balance them")
    return condition


class Error(BaseModel):
    """What went wrong, as a sentence that says what to do."""

    error: str


class Health(BaseModel):
    """The server answers."""

    status: str = "ok"


class FileLink(BaseModel):
    """Where a file is, and its media type."""

    url: str
    type: str


class _Described(BaseModel):
    id: str
    text: str | None
    label: str | None
    modalities: list[str] = Field(description="Really observed.")
    missing: list[str] = Field(description="Not observed.")
    certainty: float | None
    url: str
    thumbnail: str | None
    files: dict[str, FileLink]


class Item(_Described):
    """An item of the collection, and what else its source says about it."""

    columns: dict[str, Any]
    added: bool = Field(description="Whether it was added through the server, so that it can be renamed.")


class Contribution(BaseModel):
    """How much of a similarity came from where a modality of the query met one of the item."""

    query: str | None = Field(description="A modality of the query; null for what the correction for hubs took off.")
    item: str | None = Field(description="A modality of the item, or null likewise.")
    share: float | None


class Hit(_Described):
    """An item that was found."""

    similarity: float | None
    found: list[str] = Field(description="What found it: name, words, file or vectors.")
    weak: bool | None = Field(
        description="Nine of ten queries for items that are here are nearer to them; null where no level is known."
    )
    close: bool | None = Field(
        description="Of ten queries for what is not here, nine find nothing as near; null where no level is known."
    )
    segment: tuple[float, float] | None = Field(
        description="Begin and end, in seconds, of the part of its video that is nearest to the query."
    )
    why: list[Contribution] = Field(
        description="What the similarity is the sum of, the largest part first; empty for an item without a place."
    )


class Items(BaseModel):
    """A page of the collection."""

    offset: int
    count: int
    more: bool
    items: list[Item]


class Hits(BaseModel):
    """The nearest items, the nearest first."""

    count: int
    verdict: str | None = Field(
        description="close (some hit is), perhaps, or nothing close (all hits are weak); null where that is not known."
    )
    nothing_close: bool | None = Field(description="All hits are weak; null where that is not known.")
    hits: list[Hit]


class About(BaseModel):
    """What the collection is, and how well it can be searched."""

    version: str
    items: int
    modalities: dict[str, dict[str, Any]]
    labels: list[str]
    expected: list[dict[str, Any]]
    about: dict[str, Any]
    allow_add: bool
    limits: dict[str, int | float]


def described(item: Any, modalities: Mapping[str, Mapping[str, Any]]) -> dict[str, Any]:
    """The fields that `Item` and `Hit` share: what was observed, what is missing, and where the files are."""
    address = f"/api/items/{quote(item.id, safe='')}"
    files = {
        name: {"url": f"{address}/files/{quote(name, safe='')}", "type": media_type(path)}
        for name, path in (item.paths or {}).items()
    }
    has_image = any(modalities[name]["kind"] == "image" for name in item.modalities if name in modalities)
    return {
        "id": item.id,
        "text": item.text,
        "label": item.label,
        "modalities": item.modalities,
        "missing": [name for name in modalities if name not in item.modalities],
        "certainty": item.certainty,
        "url": address,
        "thumbnail": f"{address}/thumbnail" if has_image else None,
        "files": files,
    }


def item_model(item: Any, modalities: Mapping[str, Mapping[str, Any]], added: bool) -> Item:
    """An item of the index for an answer."""
    columns = {name: value for name, value in item.columns.items() if value is not None}
    return Item(**plain({**described(item, modalities), "columns": columns, "added": added}))


def hit_model(hit: Any, modalities: Mapping[str, Mapping[str, Any]]) -> Hit:
    """A hit of the index for an answer."""
    why = [{"query": one.query, "item": one.item, "share": one.share} for one in hit.why]
    own = {"similarity": hit.similarity, "found": hit.found, "weak": hit.weak, "close": hit.close, "why": why}
    own["segment"] = hit.segment
    return Hit(**plain({**described(hit, modalities), **own}))


def media_type(path: str | PurePath) -> str:
    """`recordings/a.WAV` -> `audio/wav`"""
    return TYPES.get(PurePath(path).suffix.lower(), UNKNOWN_TYPE)


def plain(value: Any) -> Any:
    """A value that is valid JSON: no NaN or infinity, which browsers refuse, NumPy's numbers as Python's, others as text."""
    if isinstance(value, str):
        return value.encode("utf-8", "backslashreplace").decode()
    if isinstance(value, float):
        return float(value) if math.isfinite(value) else None
    if value is None or isinstance(value, (bool, int)):
        return value
    if isinstance(value, Mapping):
        return {plain(str(key)): plain(part) for key, part in value.items()}
    if isinstance(value, (list, tuple)):
        return [plain(part) for part in value]
    return plain(value.tolist() if hasattr(value, "tolist") else str(value))
