"""`push_to_hub` and `from_pretrained` for whatever can be saved as a folder."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml

from calmrl._support.parsing import reason_of
from calmrl._support.text import Table, escaped, to_markdown
from calmrl.errors import InputError, need

CARD = "README.md"
FILES = ["*.json", "*.safetensors", "*.yaml", CARD]  # what is ever downloaded: no file that could run code


class OnHub:
    """A fitted model that the Hugging Face Hub can keep. A subclass has `save(path)`, `load(path)` and `_card()`."""

    def push_to_hub(
        self,
        repo_id: str,
        *,
        data: Any = None,
        license: str | None = None,
        private: bool = False,
        token: str | None = None,
        message: str = "Upload a calmrl model",
        endpoint: str | None = None,
    ) -> str:
        """Save the model with a model card and upload both; needs the extra `hub`.

        Parameters
        ----------
        repo_id : str
            Such as "name/model"; it is created if it does not exist.
        data : FeatureSet or calmrl.hub.Data, optional
            What the model was fitted on; its name, rows and modalities go into the card, its values do not.
        license : str, optional
            Identifier of a licence, such as "apache-2.0".
        private : bool
            Of a repository that is created.
        token : str, optional
            By default the one of `hf auth login`.
        message : str
            Of the commit.
        endpoint : str, optional
            Another hub than that of `HF_ENDPOINT`, https://huggingface.co by default.

        Returns
        -------
        str
            Address of the commit.
        """

        hub = need("huggingface_hub", "hub", "Publishing a model")
        text = self._card().text(repo_id, None if data is None else Data.of(data), license)
        api = hub.HfApi(endpoint=endpoint, token=token)
        with tempfile.TemporaryDirectory() as place, _talking(repo_id):
            folder = Path(place) / "model"
            self.save(folder)  # type: ignore[attr-defined]
            (folder / CARD).write_text(text, encoding="utf-8")
            api.create_repo(repo_id, private=private, exist_ok=True)
            commit = api.upload_folder(repo_id=repo_id, folder_path=folder, commit_message=message)
        return str(commit.commit_url)

    @classmethod
    def from_pretrained(
        cls,
        source: str | os.PathLike[str],
        *,
        revision: str | None = None,
        token: str | None = None,
        cache_dir: str | os.PathLike[str] | None = None,
        endpoint: str | None = None,
    ) -> Any:
        """Load a model from the Hub, or from a folder; files that differ from what was saved are an error.

        Only tensors and JSON are read.

        Parameters
        ----------
        source : str or path
            A folder, or the name of a repository, such as "name/model".
        revision : str, optional
            A commit, tag or branch.
        token, endpoint : str, optional
            As in `push_to_hub`.
        cache_dir : path, optional
            Where downloads are kept; by default where huggingface_hub keeps them.
        """
        if Path(source).is_dir():
            return cls.load(source)  # type: ignore[attr-defined]
        hub = need("huggingface_hub", "hub", "Loading a model from the Hub")
        with _talking(str(source)):
            folder = hub.snapshot_download(
                str(source),
                revision=revision,
                token=token,
                cache_dir=cache_dir,
                endpoint=endpoint,
                allow_patterns=FILES,
            )
        return cls.load(folder)  # type: ignore[attr-defined]

    def _card(self) -> Card:
        raise NotImplementedError


@contextmanager
def _talking(repo_id: str) -> Iterator[None]:
    """What a hub refuses, and names that it does not know, become an error that says so."""
    errors = need("huggingface_hub.errors", "hub", "The Hub")
    try:
        yield
    except errors.HFValidationError as error:
        raise InputError(f"{repo_id!r} is neither a folder nor a name on the Hub, such as name/model") from error
    except errors.RepositoryNotFoundError as error:
        raise InputError(f"the Hub has no {repo_id}, or it is private: check the name, or pass token=") from error
    except errors.RevisionNotFoundError as error:
        raise InputError(f"{repo_id} has no such revision ({reason_of(error)})") from error
    except (errors.HfHubHTTPError, errors.LocalEntryNotFoundError, errors.OfflineModeIsEnabled) as error:
        raise InputError(f"the Hub does not give or take {repo_id} ({reason_of(error)}); try again later") from error


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
        Where the data come from, their licence, what was skipped.
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
        source = f" Source: {escaped(data.source)}." if data.source and data.source != data.name else ""
        about = f"Fitted on {escaped(data.name)}, {data.rows:,} rows.{source}\n\n"
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
    """The entries by their keys, as Markdown."""
    if not rows:
        return ""
    return to_markdown(Table("", list(rows[0]), [[_value(row[name]) for name in rows[0]] for row in rows])) + "\n"


def _value(value: Any) -> str:
    if isinstance(value, float):
        return NUMBERS.format(value)
    if isinstance(value, Mapping):
        return ", ".join(f"{key} {_value(entry)}" for key, entry in value.items())
    return "not known" if value is None else str(value)


SIMILAR = "New items must be like the rows that the model was fitted on, and encoded by the same encoders."
NO_NEWS = "An imputed value is a function of the observed ones: it adds no information about the single item."
UNCHECKED = "Nobody has checked the model for biases of its data or its encoders."
LIMITS = (SIMILAR, UNCHECKED)
