"""What a row of media is asked for: frames, slices, texts and seeds; nothing is decoded here."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from calmrl.data.loaders.media_rows import MediaRows
from calmrl.data.media import jobs
from calmrl.data.media.decoding import Decoding
from calmrl.data.media.jobs import Job, as_file, decoded
from calmrl.data.media.manifest import Item, Manifest
from calmrl.data.media.problems import Unreadable
from calmrl.errors import InputError

KINDS = {"vision": "image", "audio": "audio", "text": "text", "subtitle": "text"}


def words(texts: list[str], **options: Any) -> dict[str, torch.Tensor]:
    """A tokenizer that gives the length of a text as its only token."""
    ids = torch.zeros(len(texts), options["max_length"], dtype=torch.long)
    ids[:, 0] = torch.tensor([len(text) for text in texts])
    return {"input_ids": ids, "attention_mask": (ids > 0).long(), "other": ids}


def rows(kinds: dict[str, str] = KINDS, **options: Any) -> MediaRows:
    items = [
        Item(1, "a", {"vision": "a.mp4", "audio": "a.wav", "text": ["x", "xx", "xxx"]}),
        Item(2, "b", {"text": ["xxxx"], "subtitle": ["s"]}),
        Item(3, "c", {"vision": "c.png"}),
    ]
    return MediaRows(Manifest(items, kinds), tokenizer=words, **options)


def test_settings_are_part_of_a_position() -> None:
    assert rows().settings() == f"0 8 224 1 True [('subtitle', 70), ('text', 40)] {Decoding()!r}"
    assert rows(tokens={"text": 7}).tokens == {"text": 7, "subtitle": 70}


def test_texts_follow_row_epoch_and_modality() -> None:
    made, only = rows(seed=5, rows=np.array([1, 0])), np.array([[False, False, True, False]])
    for epoch in range(5):
        seed = np.random.SeedSequence([5, epoch, 0, 2]).generate_state(1)[0]  # row 0 of the manifest, third modality
        assert made.fetch(np.array([1]), only, epoch)["text"]["input_ids"][0, 0] == seed % 3 + 1
    assert rows(training=False).fetch(np.array([0]), only, 1)["text"]["input_ids"][0, 0] == 1


def test_what_does_not_fit() -> None:
    for name in ("frames", "size", "slices", "workers"):
        with pytest.raises(InputError, match="frames, size, slices and workers must be at least 1"):
            rows(**{name: 0})
    with pytest.raises(InputError, match=r"present has shape \(2, 4\); the manifest has \(3, 4\)"):
        rows(present=np.ones((2, 4), bool))
    with pytest.raises(InputError, match="tokens names 'vision', which is no text; there are none"):
        rows({"vision": "image"}, tokens={"vision": 3})
    MediaRows(Manifest([], {"vision": "image"}))  # no row, and no tokenizer without texts
    with pytest.raises(InputError, match="text, subtitle need a tokenizer; pass the folder or the name of one"):
        MediaRows(Manifest([], KINDS))
    hidden = np.ones((3, 4), bool)
    hidden[1] = False
    some = rows(present=hidden, rows=np.array([2, 1]))
    assert (some.unusable, some.rows.tolist(), some.ids.tolist()) == (1, [2], ["c"])
    assert some.present.tolist() == [[True, False, False, False]]


def test_captions_in_batches() -> None:
    found = [(tokens["input_ids"][:, 0].tolist(), at.tolist()) for tokens, at in rows().captions(batch_size=3)]
    assert found == [([1, 2, 3], [0, 0, 0]), ([4], [1])]
    assert [at.tolist() for _, at in rows().captions("subtitle")] == [[1]]
    assert list(rows().tokenize("text", ["x"])) == ["input_ids", "attention_mask"]
    empty = rows().tokenize("text", [])
    assert (empty["input_ids"].shape, empty["input_ids"].dtype) == ((0, 40), torch.long)


# ---- jobs


def job(source: Any, kind: str, prepare: Any, **options: Any) -> Job:
    return Job(source, kind, prepare, 2, 16_000, **options)


def test_jobs_of_texts_and_files(tmp_path: Path) -> None:
    assert job(["a", "b"], "text", str.upper).run() == ["A", "B"]
    plain = job("x", "text", str)
    assert (plain.seed, plain.decoding, plain.reads_files) == (None, None, False)
    (tmp_path / "a").write_bytes(b"abc")
    for source in (str(tmp_path / "a"), tmp_path / "a", b"abc", bytearray(b"abc")):
        assert job(source, "audio", lambda path: Path(path).read_bytes(), reads_files=True).run() == b"abc"
    with as_file(b"abc") as place:
        assert Path(place).is_file()
    assert not Path(place).exists()
    with pytest.raises(Unreadable, match="file not found"), as_file(str(tmp_path / "none")):
        pass
    image = pytest.importorskip("PIL.Image", reason="Pillow (calmrl[media]) is not installed")
    with as_file(image.new("RGB", (2, 3))) as place:
        assert image.open(place).size == (2, 3)


@pytest.mark.parametrize("workers", [0, 2])
def test_jobs_in_order(monkeypatch, workers: int) -> None:
    monkeypatch.setattr(jobs, "AHEAD", 3)

    def fail(text: str) -> str:
        if text == "4":
            raise Unreadable("bad", text)
        return text

    many = [job([str(i)], "text", fail) for i in range(8)]
    pool = ThreadPoolExecutor(workers) if workers else None
    got = list(decoded(many, pool))
    assert [one if isinstance(one, list) else one.kind for one in got] == [
        [c] if c != "4" else "bad" for c in "01234567"
    ]
    kept = list(decoded(many, pool, keep=False))
    assert [one is None for one in kept] == [c != "4" for c in "01234567"]
    if pool is not None:
        pool.shutdown()
