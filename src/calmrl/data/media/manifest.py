"""A manifest: items with the files and texts of each modality, from CSV, TSV, JSONL or Parquet; bad lines become problems."""

import csv
import hashlib
import io
import json
import re
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path, PurePath
from typing import Any

from calmrl._support.parsing import naming
from calmrl._support.text import closest
from calmrl.data.media.problems import Problems
from calmrl.errors import InputError

Row = tuple[int, dict[str, Any]]  # line number, column -> value
TABLE_SUFFIXES = (".csv", ".tsv", ".jsonl", ".parquet")
BAD_UTF8 = "surrogateescape"  # bytes that are not UTF-8 survive as lone surrogates, see `is_text`


def read_rows(path: Path, problems: Problems) -> list[Row]:
    """All rows of the file."""
    if not path.is_file():
        raise InputError(f"no manifest at {path}; give a file that ends in {', '.join(TABLE_SUFFIXES)}")
    suffix = path.suffix.lower()
    if suffix in (".csv", ".tsv"):
        return list(_delimited(path, "\t" if suffix == ".tsv" else ",", problems))
    if suffix == ".jsonl":
        return list(_json_lines(path, problems))
    if suffix == ".parquet":
        from calmrl.data.features.feature_set import read_table

        return list(enumerate(read_table(path).to_pylist(), start=1))
    raise InputError(f"{path} ends in {path.suffix!r}; a manifest ends in {', '.join(TABLE_SUFFIXES)}")


def is_text(value: str) -> bool:
    """False if the value came from bytes that are not UTF-8."""
    return not any("\ud800" <= character <= "\udfff" for character in value)


def _delimited(path: Path, delimiter: str, problems: Problems) -> Iterator[Row]:
    content = path.read_bytes().decode("utf-8", BAD_UTF8).removeprefix("\ufeff")
    reader = csv.DictReader(io.StringIO(content, newline=""), delimiter=delimiter, strict=True)
    try:
        names = reader.fieldnames or []
        if len(set(names)) != len(names):
            twice = next(name for name in names if list(names).count(name) > 1)
            raise InputError(f'{path} has two columns called "{twice}"; rename one')
        for row in reader:
            if None in row or None in row.values():
                got = sum(value is not None for key, value in row.items() if key is not None) + len(row.get(None) or [])
                what = f"{got} fields for {len(names)} columns"
                problems.add("wrong number of fields", "row", line=reader.line_num, id=row.get("id") or "", detail=what)
            else:
                yield reader.line_num, row
    except csv.Error as error:
        raise InputError(f"{path} line {reader.line_num} is not CSV ({error}); write it with a CSV library") from error


def _json_lines(path: Path, problems: Problems) -> Iterator[Row]:
    content = path.read_bytes().decode("utf-8", BAD_UTF8).removeprefix("\ufeff")
    for number, line in enumerate(content.split("\n"), start=1):
        if not line.strip():
            continue
        try:
            row = json.loads(line)
        except (ValueError, RecursionError) as error:
            problems.add("not JSON", "row", line=number, detail=f"{error}")
            continue
        if isinstance(row, dict):
            yield number, row
        else:
            problems.add("not a JSON object", "row", line=number, detail=line[:60])


SPLITS = ("train", "val", "test")
COLUMNS = ("id", "split", "labels", "text")
META = "meta."


@dataclass
class Item:
    """One row: for each modality that it has a path, or its texts; and what else is known."""

    line: int
    id: str
    cells: dict[str, Any] = field(default_factory=dict)  # modality -> path (str), several (tuple), or list of texts
    columns: dict[str, Any] = field(default_factory=dict)  # split, labels, text, meta.NAME
    text_files: tuple[str, ...] = ()  # that its texts were read from


@dataclass
class Manifest:
    """The items that can be used, the kinds of their modalities, and a digest of all of it."""

    items: list[Item]
    kinds: dict[str, str]  # modality -> "image", "audio" or "text"
    left_out: dict[str, dict[str, int]] = field(default_factory=dict)  # by part of the split, see `left_out.py`

    def column(self, name: str) -> list[Any] | None:
        """What is known under this name for every item; None if nothing is."""
        values = [item.columns.get(name) for item in self.items]
        return values if any(value is not None for value in values) else None

    def parts(self) -> dict[str, str]:
        """Id -> part of the split, "" without one."""
        return {item.id: item.columns.get("split") or "" for item in self.items}

    def extra(self) -> dict[str, list[Any]]:
        """The columns `meta.NAME`, by NAME."""
        names = dict.fromkeys(name for item in self.items for name in item.columns if name.startswith(META))
        return {name.removeprefix(META): [item.columns.get(name) for item in self.items] for name in names}

    def digest(self) -> str:
        """Changes when a row, a path, a text or the size of a file changes; not when the folder is moved."""
        whole = hashlib.sha256(json.dumps(self.kinds).encode())
        for item in self.items:
            cells = [
                (
                    name,
                    cell
                    if isinstance(cell, list)
                    else [part for p in paths_of(cell) for part in (Path(p).name, _stat(p)[0])],
                )
                for name, cell in item.cells.items()
            ]
            whole.update(json.dumps([item.id, cells, item.columns], default=str).encode())
        return whole.hexdigest()

    def times(self) -> str:
        """Changes when a file is written again, even with the same size."""
        files = (path for item in self.items for cell in item.cells.values() for path in paths_of(cell))
        return hashlib.sha256(json.dumps([_stat(path)[1] for path in files]).encode()).hexdigest()


def paths_of(cell: Any) -> tuple[str, ...]:
    """The paths of a cell; none where it holds texts."""
    return () if isinstance(cell, list) else cell if isinstance(cell, tuple) else (str(cell),)


def read_manifest(
    path: str | Path,
    kinds: Mapping[str, str],
    problems: Problems,
    *,
    root: str | Path | None = None,
    captions: str | Path | None = None,
    ignore: Collection[str] = (),
) -> Manifest:
    """Read a table of files.

    Parameters
    ----------
    path : str or Path
        A CSV, TSV, JSONL or Parquet file.
    kinds : mapping of str to str
        Modality -> image, audio or text.
    problems : Problems
        Takes what is wrong with the table; what it spoils is not in the manifest.
    root : str or Path, optional
        What paths are relative to; by default the folder of the table.
    captions : str or Path, optional
        A second table with the columns id and text.
    ignore : collection of str
        Columns that are not used.

    Examples
    --------
    >>> rows = read_manifest("items.csv")  # doctest: +SKIP
    """
    path = Path(path)
    with naming(path):
        rows = read_rows(path, problems)
        if captions is not None:
            rows = _join_captions(rows, read_rows(Path(captions), problems), problems)
        return build(rows, kinds, problems, root=path.parent if root is None else Path(root), ignore=ignore)


def build(
    rows: Iterable[Row],
    kinds: Mapping[str, str],
    problems: Problems,
    *,
    root: Path,
    ignore: Collection[str] = (),
) -> Manifest:
    """The manifest of rows, however they were read."""
    rows = list(rows)
    if not rows:
        if problems:
            return Manifest([], dict(kinds))
        raise InputError("the manifest has no rows")
    columns = dict.fromkeys(name for _, row in rows for name in row)
    _check_columns(columns, kinds, problems, ignore)
    items: list[Item] = []
    seen: dict[str, int] = {}
    for number, (line, row) in enumerate(rows):
        item = Item(line, str(row["id"]).strip() if row.get("id") is not None else "")
        if "id" not in columns:
            item.id = str(number)
        if _bad_row(item, row, seen, problems):
            continue
        for name in columns:
            if name in kinds:
                _read_cell(item, name, kinds[name], row.get(name), root, problems)
            elif name not in ignore and (name in ("labels", "text") or name.startswith(META)):
                _read_column(item, name, row.get(name), problems)
        if "text" in kinds and "text" in item.cells:
            item.columns["text"] = item.cells["text"]
        seen[item.id] = line
        items.append(item)
    return Manifest(items, dict(kinds))


def drop_empty(manifest: Manifest, problems: Problems) -> None:
    """Take out items that have no modality at all, each as a problem of its own."""
    for item in manifest.items:
        if not item.cells:
            problems.add("no modality at all", "row", line=item.line, id=item.id)
    manifest.items = [item for item in manifest.items if item.cells]


def _check_columns(
    columns: Collection[str], kinds: Mapping[str, str], problems: Problems, ignore: Collection[str]
) -> None:
    for name in kinds:
        if name not in columns:
            near = closest(name, columns)
            hint = f' (did you mean "{near}"?)' if near else ""
            raise InputError(f'the manifest has no column "{name}"{hint}; it has {", ".join(map(str, columns))}')
    for name in ignore:
        if name not in columns or name in kinds:
            reason = "has an encoder" if name in kinds else f"is no column; there are {', '.join(map(str, columns))}"
            raise InputError(f'"{name}" cannot be ignored: it {reason}')
    for name in columns:
        if name not in kinds and name not in COLUMNS and name not in ignore and not str(name).startswith(META):
            advice = f"give it an encoder, call it {META}{name}, or ignore it (`ignore=[{name!r}]`)"
            problems.add("unknown column", "table", column=str(name), detail=advice)


def _bad_row(item: Item, row: dict[str, Any], seen: dict[str, int], problems: Problems) -> bool:
    """Whether the row has no usable id or split."""
    where: dict[str, Any] = {"line": item.line, "id": item.id}
    split = row.get("split")
    split = split.strip() if isinstance(split, str) else split
    if not item.id:
        problems.add("empty id", "row", **where)
    elif not is_text(item.id):
        problems.add("id is not UTF-8", "row", **where)
    elif item.id in seen:
        problems.add("duplicate id", "row", detail=f"first in line {seen[item.id]}", **where)
    elif split not in (None, "", *SPLITS):
        problems.add("unknown split", "row", column="split", detail=f"{split!r} is not {', '.join(SPLITS)}", **where)
    else:
        item.columns["split"] = split or None
        return False
    return True


def _read_cell(item: Item, name: str, kind: str, value: Any, root: Path, problems: Problems) -> None:
    where: dict[str, Any] = {"line": item.line, "id": item.id, "column": name}
    if kind == "text":
        texts, wrong = as_texts(value)
        for detail in wrong:
            problems.add("not a text", "cell", detail=detail, **where)
        if texts and not wrong:
            item.cells[name] = texts
    elif value is not None and value != "":
        paths = as_texts(value)[0] if isinstance(value, list) or str(value).startswith("[") else [value]
        if paths and all(isinstance(path, str) for path in paths):
            files = tuple(str(root / path) for path in paths)
            item.cells[name] = files if len(files) > 1 else files[0]
        else:
            problems.add("not a path", "cell", detail=f"{value!r:.60}", **where)


def _read_column(item: Item, name: str, value: Any, problems: Problems) -> None:
    where: dict[str, Any] = {"line": item.line, "id": item.id, "column": name}
    if name == "text":
        texts, wrong = as_texts(value)
        item.columns[name] = texts or None
    else:
        parts = value if isinstance(value, list) else [value]
        wrong = [f"{part!r:.60} is not UTF-8" for part in parts if isinstance(part, str) and not is_text(part)]
        item.columns[name] = None if wrong or value == "" else value
    for detail in wrong:
        problems.add("not a text", "table", detail=detail, **where)


def as_texts(value: Any) -> tuple[list[str], list[str]]:
    """A cell as its texts, without blank ones, and what is wrong with it. A string that is a JSON list is one."""
    if value is None:
        return [], []
    if isinstance(value, str) and value.lstrip().startswith("["):
        try:
            parsed = json.loads(value)
        except (ValueError, RecursionError):
            parsed = value  # a text that happens to begin with a bracket
        value = parsed if isinstance(parsed, list) and all(isinstance(part, str) for part in parsed) else value
    parts = value if isinstance(value, list) else [value]
    wrong = [f"{part!r:.60} is a {type(part).__name__}" for part in parts if not isinstance(part, str)]
    wrong += [f"{part!r:.60} is not UTF-8" for part in parts if isinstance(part, str) and not is_text(part)]
    return [part.strip() for part in parts if isinstance(part, str) and is_text(part) and part.strip()], wrong


def _join_captions(rows: list[Row], captions: list[Row], problems: Problems) -> list[Row]:
    """Add the texts of a second table to the rows with the same id."""
    if captions and not {"id", "text"} <= set(captions[0][1]):
        raise InputError(f"the table of captions needs the columns id and text; it has {', '.join(captions[0][1])}")
    by_id = {str(row.get("id")): row for _, row in reversed(rows)}
    texts: dict[str, list[Any]] = {}
    for line, row in captions:
        name = str(row.get("id"))
        if name not in by_id:
            problems.add("caption without item", "table", line=line, id=name, column="text", detail="no such id")
            continue
        more = row.get("text")
        texts.setdefault(name, []).extend(more if isinstance(more, list) else [more])
    joined = []
    for line, row in rows:
        own, wrong = as_texts(row.get("text"))
        added = texts.get(str(row.get("id")), []) if by_id.get(str(row.get("id"))) is row else []
        joined.append((line, row | {"text": row.get("text") if wrong else own + added}))
    return joined


def _stat(path: str) -> tuple[int, int]:
    """Size in bytes and time of the last change in nanoseconds; -1 without such a file."""
    try:
        stat = Path(path).stat()
    except (OSError, ValueError):
        return -1, -1
    return stat.st_size, stat.st_mtime_ns


IMAGE = (".png", ".jpg", ".jpeg", ".webp", ".gif", ".bmp", ".tif", ".tiff", ".heic", ".heif", ".avif", ".svg")
AUDIO = (".wav", ".mp3", ".flac", ".ogg", ".oga", ".opus", ".m4a", ".aac", ".aif", ".aiff", ".wma")
VIDEO = (".mp4", ".avi", ".webm", ".mkv", ".mov", ".m4v", ".mpg", ".mpeg", ".ts", ".flv", ".wmv", ".ogv", ".3gp")
TEXT = (".txt", ".md", ".markdown", ".html", ".htm", ".pdf")  # a PDF of pictures is a picture
TRANSPORT = b"\x47"  # the first byte of an MPEG stream in packets; other files are called .ts too

MODALITIES = {"text": TEXT, "image": IMAGE, "video": VIDEO, "sound": AUDIO}  # in the order of columns
KINDS = {"text": "text", "image": "image", "video": "image", "sound": "audio"}  # modality -> what its encoder takes


def modality_of(name: str) -> str | None:
    """The modality that a file holds, by its suffix; None for a suffix that says nothing."""
    suffix = PurePath(name).suffix.lower()
    return next((modality for modality, suffixes in MODALITIES.items() if suffix in suffixes), None)


SIGNATURES = (  # of files whose suffix says nothing: (pattern of the first bytes, modality)
    (rb"\x89PNG\r\n|\xff\xd8\xff|GIF8[79]a|BM.{4}\0{4}|II\*\0|MM\0\*|RIFF.{4}WEBP", "image"),
    (rb".{4}ftyp(?:hei[cxms]|hev[cx]|mif1|msf1|avi[fs])", "image"),
    (rb"(?:<\?xml[^>]*>\s*)?<svg\b", "image"),
    (rb"RIFF.{4}WAVE|fLaC|OggS|ID3|.{4}ftypM4A |FORM.{4}AIF", "sound"),
    (rb".{4}ftyp|\x1aE\xdf\xa3|RIFF.{4}AVI ", "video"),
    (rb"%PDF-", "text"),
)


def modality_in(path: str | Path) -> str | None:
    """The modality that a file holds: by its suffix, or where that says nothing by its first bytes; None if neither does."""
    modality = modality_of(str(path))
    if modality is not None and PurePath(path).suffix.lower() != ".ts":
        return modality
    try:
        with open(path, "rb") as file:
            head = file.read(64)
    except OSError:
        return modality
    if modality is not None:
        return modality if head.startswith(TRANSPORT) else None
    return next((found for pattern, found in SIGNATURES if re.match(pattern, head, re.DOTALL)), None)


TEXTS = ("text", "texts", "caption", "captions", "subtitle", "transcript", "description", "title", "sentence")
SHARE = 0.9  # of the cells of a column that must look like files


def guess_kinds(rows: Iterable[dict[str, Any]]) -> dict[str, str]:
    """Column -> "image", "audio" or "text", for columns that look like a modality; the others are left out.

    A column of files has cells that end in the suffixes of pictures, videos or sounds; a column of texts is known by
    its name.
    """
    cells: dict[str, list[Any]] = {}
    for row in rows:
        for name, value in row.items():
            cells.setdefault(str(name), []).extend([] if value is None or value == "" else [value])
    kinds = {}
    for name, values in cells.items():
        if (name in COLUMNS and name != "text") or name.startswith(META) or not values:
            continue
        if name.lower() in TEXTS:
            kinds[name] = "text"
            continue
        modalities = [modality_of(value) if isinstance(value, str) else None for value in values]
        seen = [KINDS[modality] for modality in modalities if modality not in (None, "text")]
        if len(seen) >= SHARE * len(values):
            sound = name.lower() in ("sound", "audio", "speech", "voice", "music") or "image" not in seen
            kinds[name] = "audio" if sound else "image"
    return kinds
