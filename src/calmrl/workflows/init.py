"""From a collection to the configs that fit it: `calmrl init`."""

from __future__ import annotations

import csv
import json
import os
import re
import shlex
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from calmrl._support.output import check_writable, new_file
from calmrl._support.text import plural
from calmrl.config.yaml_text import write_yaml
from calmrl.data.media.manifest import Manifest, paths_of
from calmrl.data.media.public_collections import PublicCollection
from calmrl.encoders.registry import default_encoders, default_name
from calmrl.errors import InputError, MissingExtraError
from calmrl.workflows.survey import Survey, survey

TABLE = "items.csv"
SIMPLE = re.compile(r"[\w./][\w./-]*")
RESPLIT = "{by: id, val: 0.1, test: 0.3}"
IMPUTE = """# {command}
# Vectors for the modalities that items lack; the imputer is chosen on blocks that are held out.
kind: impute
imputer: {{method: auto}}
std: true  # also write how uncertain every imputed number is
seed: 0
"""


@dataclass(frozen=True)
class Start:
    """What `init` found and wrote."""

    survey: Survey
    files: list[Path]
    commands: list[str]  # what to run next, in this order
    notes: list[str]  # what a person should know first


def init(source: str | Path | PublicCollection, out: str | Path, *, force: bool = False) -> Start:
    """Look at a folder, a manifest, a public collection or features, and write configs that run as they are.

    Parameters
    ----------
    source : str, Path or PublicCollection
        A folder of files (files with one stem are one item), a table of files, features, or a public collection.
    out : str or Path
        A folder for `items.csv` (the table of a folder), `extract.yaml`, `train.yaml`, `compare.yaml`,
        `impute.yaml` and `notes.md`.
    force : bool
        Replace files of these names.

    Examples
    --------
    >>> init("photos", "photos-work")  # doctest: +SKIP
    """
    out = Path(out)
    check_writable(out)
    home = Path(source.root if isinstance(source, PublicCollection) else source)
    if out.exists() and not out.is_dir():
        raise InputError(f"{out} is a file; give the name of a folder")
    seen = survey(source)
    notes = [f"problem: {line}" for line in seen.problems.lines(allowed=False)]
    texts: dict[str, str] = {}
    features = home
    commands: dict[str, str] = {}
    if seen.manifest is not None:
        features = out / "features"
        commands["extract"] = _command("extract", out / "extract.yaml", "--out", features)
        texts["extract.yaml"] = _extract_text(seen, _items_text(seen, source, out), commands["extract"])
        notes += _missing_packages(seen)
        if seen.form == "folder" and not isinstance(source, PublicCollection):
            notes.append(f"to search it, none of this is needed: {_command('open', source)}")
    if len(seen.names) > 1:
        commands |= {
            "diagnose": _command("diagnose", features, "--out", out / "diagnosis"),
            "train": _command("train", out / "train.yaml", "--out", out / "run"),
            "evaluate": _command("evaluate", out / "run"),
            "compare": _command("compare", out / "compare.yaml", "--out", out / "comparison"),
            "impute": _command("impute", features, "--config", out / "impute.yaml", "--out", out / "imputed"),
        }
        texts["train.yaml"] = _train_text(seen, features, commands)
        texts["compare.yaml"] = _compare_text(seen, features, commands)
        texts["impute.yaml"] = IMPUTE.format(command=commands["impute"])
    else:
        notes.append(
            f"one modality ({seen.names[0]}) leaves nothing to align or to impute from; no train.yaml is written"
        )
    texts["notes.md"] = _notes_text(home, seen, commands, notes, out / "run")
    files = []
    out.mkdir(parents=True, exist_ok=True)
    if seen.form == "folder" and seen.manifest is not None:
        files.append(_write_table(seen.manifest, out / TABLE, force))
    for name, text in texts.items():
        with new_file(out / name, force=force) as draft:
            draft.write_text(text, encoding="utf-8")
        files.append(out / name)
    return Start(seen, files, list(commands.values()), notes)


def _missing_packages(seen: Survey) -> list[str]:
    try:
        default_encoders(seen.kinds)
    except MissingExtraError as error:
        return [str(error)]
    return []


def _write_table(manifest: Manifest, path: Path, force: bool) -> Path:
    """The items of a folder as CSV; paths are relative to the table."""
    columns = [name for name in ("split", "labels") if manifest.column(name) is not None]
    home = path.parent.resolve()
    with new_file(path, force=force) as draft, open(draft, "w", newline="", encoding="utf-8") as stream:
        writer = csv.writer(stream)
        writer.writerow(["id", *columns, *manifest.kinds])
        for item in manifest.items:
            cells = [_cell(item.cells.get(name), home) for name in manifest.kinds]
            writer.writerow([item.id, *(item.columns.get(name) or "" for name in columns), *cells])
    return path


def _cell(value: Any, home: Path) -> str:
    if value is None:
        return ""
    if isinstance(value, list):  # texts
        return value[0] if len(value) == 1 and not value[0].startswith("[") else json.dumps(value, ensure_ascii=False)
    paths = [Path(os.path.relpath(Path(path).resolve(), home)).as_posix() for path in paths_of(value)]
    return paths[0] if len(paths) == 1 else json.dumps(paths, ensure_ascii=False)


def _scalar(value: str | Path) -> str:
    """A name or a path as a YAML text, quoted where it needs to be."""
    text = value.as_posix() if isinstance(value, Path) else value
    plain = SIMPLE.fullmatch(text) and not write_yaml(text).startswith("'")  # YAML reads a plain `no` as false
    return text if plain else json.dumps(text, ensure_ascii=False)


def _listed(values: Iterable[str]) -> str:
    return f"[{', '.join(map(_scalar, values))}]"


def _command(*words: str | Path) -> str:
    return shlex.join(["calmrl", *map(str, words)])


def _items_text(seen: Survey, source: str | Path | PublicCollection, out: Path) -> str:
    """The line of extract.yaml that says where the items are."""
    if not isinstance(source, PublicCollection):
        return f"manifest: {_scalar(out / TABLE if seen.form == 'folder' else Path(source))}\n"
    keys: dict[str, str | Path] = {"name": source.name, "root": Path(source.root), "split": source.split_name}
    parts = [f"{key}: {_quoted(value)}" for key, value in keys.items()]
    parts += [] if source.annotations is None else [f"annotations: {_quoted(Path(source.annotations))}"]
    folders = ", ".join(f"{name}: {_quoted(Path(folder))}" for name, folder in source.media.items())
    return f"collection: {{{', '.join([*parts, *([f'media: {{{folders}}}'] if folders else [])])}}}\n"


def _quoted(value: str | Path) -> str:
    """A YAML text that stays one inside braces and is no number."""
    text = value.as_posix() if isinstance(value, Path) else value
    return json.dumps(text, ensure_ascii=False)


def _extract_text(seen: Survey, items: str, command: str) -> str:
    encoders = "".join(f"  {_scalar(name)}: {default_name(name, kind)}\n" for name, kind in seen.kinds.items())
    unknown = sorted({problem.column for problem in seen.problems if problem.kind == "unknown column"})
    ignore = (
        f"ignore: {json.dumps(unknown, ensure_ascii=False)}  # columns that are neither files nor texts\n"
        if unknown
        else ""
    )
    return (
        f"# {command}\n"
        "# Frozen encoders turn texts, pictures and sounds into vectors. `calmrl ls encoders` lists others.\n"
        "kind: extract\n"
        f"{items}"
        f"encoders:\n{encoders}{ignore}"
        f"{_allow_text(seen)}"
    )


def _allow_text(seen: Survey) -> str:
    """Downloads of public collections are never complete: where files are absent, the config says that it goes on."""
    absent = sum(problem.scope == "cell" for problem in seen.problems)
    if seen.form == "collection" and absent:
        return (
            f"allow_missing: true  # {plural(absent, 'file')} not found: counted as missing, and every table says so\n"
        )
    return "allow_missing: false  # true: what cannot be decoded counts as missing\n"


def _source_text(seen: Survey, features: Path, commands: dict[str, str], indent: str) -> str:
    lines = [f"features: {_scalar(features)}"]
    if "extract" in commands:
        lines.append(f"needs: {_scalar('run ' + commands['extract'])}")
    if not seen.has_split():
        lines.append(f"resplit: {RESPLIT}  # the data have no split: shares of the items, drawn by seed")
    return "".join(f"{indent}{line}\n" for line in lines)


def _train_text(seen: Survey, features: Path, commands: dict[str, str]) -> str:
    return (
        f"# {commands['train']}\n"
        "# One space for all modalities, learned from the items as they are, holes included. `calmrl ls methods` lists\n"
        "# other methods.\n"
        "kind: train\n"
        "method: aligner\n"
        f"sources:\n  own:\n{_source_text(seen, features, commands, '    ')}"
        f"modalities: {_listed(seen.names)}\n"
        "seed: 0\n"
    )


def _compare_text(seen: Survey, features: Path, commands: dict[str, str]) -> str:
    labelled = seen.repeats_texts() and all(label is not None for label in seen.labels)
    relevant = (
        "relevant_by: labels  # texts repeat: every item with the label of the query counts\n" if labelled else ""
    )
    return (
        f"# {commands['compare']}\n"
        "# Which method suits these data: all get the same rows, steps and trials, and validation rows choose.\n"
        "kind: compare\n"
        f"source:\n{_source_text(seen, features, commands, '  ')}"
        f"modalities: {_listed(seen.names)}\n"
        "settings: as-is  # items lack what they lack; nothing is hidden on purpose\n"
        f"{relevant}"
        "methods: [contrastive, pmrl, calibrated, aligner]\n"
        "seeds: [0, 1, 2]\n"
    )


def _notes_text(source: Path, seen: Survey, commands: dict[str, str], notes: list[str], run: Path) -> str:
    parts = [f"# {source.name}", "", "## What is there", "```text", *seen.lines(), "```"]
    if notes:
        parts += ["", "## To look at first", *(f"- {note}" for note in notes)]
    parts += ["", "## What to run", "```console", *commands.values(), "```"]
    if seen.manifest is not None and len(seen.names) > 1:
        item = ", ".join(f'"{name}": ...' for name in seen.names)
        parts += [
            "",
            "New items, as raw texts and files:",
            "```python",
            "import calmrl",
            f'model = calmrl.load("{run}")',
        ]
        parts += [f"vectors = model.embed_files([{{{item}}}])  # leave out what an item lacks", "```"]
    return "\n".join(parts) + "\n"
