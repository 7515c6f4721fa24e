"""`push_to_hub` and `from_pretrained` for whatever can be saved as a folder."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from calmrl._support.parsing import reason_of
from calmrl.errors import InputError, need

if TYPE_CHECKING:
    from calmrl.hub.card import Card

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
        from calmrl.hub.card import Data  # cards are loaded when something is pushed

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
