"""The model card: what a model was fitted on, what was chosen, what to expect of it, and what it cannot do."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import yaml

from calmrl.errors import InputError

NUMBERS = "{:.3g}"


@dataclass(frozen=True)
class Data:
    """What a model was fitted on.

    Parameters
    ----------
    name : str
    rows : int
    observed : mapping of str to int
        Modality -> rows that have it.
    source : str
        Where the data come from, their licence, what was left out.
    """

    name: str
    rows: int
    observed: Mapping[str, int]
    source: str = ""

    @staticmethod
    def of(features: Any) -> Data:
        """From a feature set, such as `open_features` and `load_dataset` return."""
        if isinstance(features, Data):
            return features
        if not hasattr(features, "present") or not hasattr(features, "names"):
            raise InputError(
                f"data must be the feature set that the model was fitted on, or calmrl.hub.Data; got {type(features).__name__}"
            )
        counts = {name: int(count) for name, count in zip(features.names, features.present.sum(axis=0), strict=True)}
        return Data(features.name or "features in memory", len(features), counts, features.source)


@dataclass(frozen=True)
class Card:
    """The content of a model card.

    Parameters
    ----------
    title : str
    code : str
        Lines of Python that load and use the model; `{repo}` stands for its name.
    widths : mapping of str to int
        Modality -> number of columns.
    encoders : mapping of str to str
        Modality -> what encoded it, where that is known.
    choice : mapping
        Settings that were chosen, by name.
    quality : sequence of mappings
        Rows of a table of what to expect; all rows have the same keys.
    quality_note : str
        How these numbers were measured.
    limits : sequence of str
        Sentences.
    tags : sequence of str
    """

    title: str
    code: str
    widths: Mapping[str, int]
    choice: Mapping[str, Any]
    quality: Sequence[Mapping[str, Any]]
    quality_note: str
    limits: Sequence[str]
    encoders: Mapping[str, str] = field(default_factory=dict)
    tags: Sequence[str] = ()

    def text(self, repo: str, data: Data | None, license: str | None) -> str:
        """The card as Markdown with front matter."""
        head: dict[str, Any] = {"library_name": "calmrl", "tags": ["multimodal", "missing-modalities", *self.tags]}
        head |= {} if license is None else {"license": license}
        parts = [
            f"---\n{yaml.safe_dump(head, sort_keys=False)}---\n",
            f"# {self.title}\n",
            f"```python\n{self.code.format(repo=repo)}\n```\n",
            "## Data\n",
            _data_text(self.widths, self.encoders, data),
            "## Choice\n",
            _table([{"setting": name, "value": _value(value)} for name, value in self.choice.items()]),
            "## Expected quality\n",
            self.quality_note + "\n",
            _table(self.quality),
            "## Limits\n",
            "".join(f"- {sentence}\n" for sentence in self.limits),
        ]
        return "\n".join(part for part in parts if part)


def _data_text(widths: Mapping[str, int], encoders: Mapping[str, str], data: Data | None) -> str:
    if data is None:
        about = "The author does not say which rows the model was fitted on.\n\n"
    else:
        source = f" Source: {_cell(data.source)}." if data.source and data.source != data.name else ""
        about = f"Fitted on {_cell(data.name)}, {data.rows:,} rows.{source}\n\n"
    rows = [
        {
            "modality": name,
            "columns": width,
            **({} if data is None else {"rows that have it": data.observed.get(name, 0)}),
            **({"encoder": encoders.get(name, "unknown")} if encoders else {}),
        }
        for name, width in widths.items()
    ]
    return about + _table(rows)


def _table(rows: Sequence[Mapping[str, Any]]) -> str:
    if not rows:
        return ""
    names = list(rows[0])
    lines = ["| " + " | ".join(names) + " |", "|" + "---|" * len(names)]
    lines += ["| " + " | ".join(_cell(_value(row[name])) for name in names) + " |" for row in rows]
    return "\n".join(lines) + "\n"


def _value(value: Any) -> str:
    if isinstance(value, float):
        return NUMBERS.format(value)
    if isinstance(value, Mapping):
        return ", ".join(f"{key} {_value(entry)}" for key, entry in value.items())
    return "not known" if value is None else str(value)


def _cell(text: str) -> str:
    """A text that cannot leave its cell, nor act as markup."""
    plain = " ".join(str(text).split())
    for mark in "\\|<>`*_[]":
        plain = plain.replace(mark, f"\\{mark}" if mark not in "<>" else {"<": "&lt;", ">": "&gt;"}[mark])
    return plain
