"""Feature directories: what is written is what is read, whatever happens in between."""

from __future__ import annotations

import errno
import json
import os
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from calmrl.data.features import directory as files_module
from calmrl.data.features.feature_set import FeatureSet, open_features, part_of
from calmrl.data.features.writer import STATE, FeatureWriter, write_features
from calmrl.errors import InputError

N = 11
WIDTHS = {"image": 5, "text": 3}


def example(n: int = N, dtype: str = "float32") -> tuple[dict[str, np.ndarray], np.ndarray]:
    rng = np.random.default_rng(0)
    z = {name: rng.normal(size=(n, width)).astype(dtype) for name, width in WIDTHS.items()}
    present = np.ones((n, 2), dtype=bool)
    present[::3, 0] = False
    present[1::3, 1] = False
    return z, present


def files(path: Path) -> dict[str, bytes]:
    return {file.name: file.read_bytes() for file in sorted(path.iterdir())}


def same(read: dict[str, np.ndarray], z: dict[str, np.ndarray], present: np.ndarray) -> bool:
    assert list(read) == list(z)
    return all(
        np.array_equal(read[name][present[:, j]], z[name][present[:, j]]) and np.isnan(read[name][~present[:, j]]).all()
        for j, name in enumerate(z)
    )


@pytest.mark.parametrize("dtype", ["float16", "float32", "float64"])
def test_round_trip(tmp_path: Path, dtype: str) -> None:
    z, present = example(dtype=dtype)
    text = [["a cat", "une chatte"] if i else None for i in range(N)]
    written = write_features(
        tmp_path / "f",
        z,
        present,
        ids=[f"item {i}" for i in range(N)],
        split=["train"] * 8 + ["val", "test", None],
        labels=np.arange(N) % 3,
        text=text,
        columns={"folder": ["x"] * N},
        info={"encoder": {"image": "m"}},
    )
    for features in (written, open_features(tmp_path / "f"), open_features(str(tmp_path / "f"))):
        assert isinstance(features.z["image"], np.memmap)
        assert features.z["image"].dtype == dtype
        assert same(features.z, z, present)
        assert np.array_equal(features.present, present)
        assert features.ids[3] == "item 3"
        assert features.split.tolist()[-3:] == ["val", "test", None]
        assert features.labels.tolist() == [i % 3 for i in range(N)]
        assert features.text.tolist() == text
        assert features.column("folder")[0] == "x"
        assert features.info == {"encoder": {"image": "m"}}
        assert features.imputed is None
        assert features.std is None
        features.verify()
    plain = np.load(tmp_path / "f" / "image.npy", mmap_mode="r")  # the files are ordinary .npy
    assert np.array_equal(np.isnan(plain).all(axis=1), ~present[:, 0])


def test_select(tmp_path: Path) -> None:
    z, present = example()
    features = write_features(tmp_path / "f", z, present, split=["train", "test"] * 5 + ["train"], labels=range(N))
    test = features.select("test")
    assert test.ids.tolist() == ["1", "3", "5", "7", "9"]
    assert np.array_equal(test.present, present[1::2])
    few = features.select(np.array([4, 2]))
    assert few.labels.tolist() == [4, 2]
    assert np.array_equal(features.select(present[:, 0]).present, present[present[:, 0]])
    for rows, said in (
        (np.ones(3, dtype=bool), r"mask of shape \(3,\) but there are 11 rows"),
        ("dev", 'no row has split "dev"; there are test, train'),
        (np.array([-12]), "rows must lie between 0 and 10; got -12 to -12"),
        (np.array([11]), "rows must lie between 0 and 10; got 11 to 11"),
    ):
        with pytest.raises(InputError, match=said):
            features.select(rows)
    with pytest.raises(InputError, match="no split column"):
        write_features(tmp_path / "g", z, present).select("train")
    assert features.row_numbers(np.array([-11, 10, -1])).tolist() == [0, 10, 10]
    assert features.row_numbers(np.array([], dtype=int)).tolist() == []


def test_chosen_modalities(tmp_path: Path) -> None:
    z, present = example()
    present[2] = False  # rows without any modality are kept
    holes = {name: torch.from_numpy(np.where(present[:, [j]], z[name], np.nan)) for j, name in enumerate(z)}
    whole = write_features(tmp_path / "f", holes)
    assert np.array_equal(whole.present, present)
    assert whole.ids.tolist() == [str(i) for i in range(N)]
    assert (whole.split, whole.labels, whole.text) == (None, None, None)
    with pytest.raises(InputError, match="no column"):
        whole.column("folder")
    features = open_features(tmp_path / "f", ["text"])
    assert features.names == ("text",)
    assert np.array_equal(features.present, present[:, 1:])
    with pytest.raises(InputError, match='no modality "sound"; it has image, text'):
        open_features(tmp_path / "f", ["sound"])


def test_completed_features(tmp_path: Path) -> None:
    z, present = example()
    std = {name: np.abs(array) for name, array in z.items()}
    imputed = ~present
    imputed[0, 0] = False  # row 0 lacks the image and nobody filled it
    write_features(tmp_path / "f", z, present, imputed=imputed, std=std)
    features = open_features(tmp_path / "f")
    features.verify()
    assert np.array_equal(features.present, present)
    assert np.array_equal(features.imputed, imputed)
    assert np.isnan(features.z["image"][0]).all()
    assert np.array_equal(features.z["image"][1:], z["image"][1:])
    assert np.array_equal(features.std["text"], std["text"])
    some = features.select(np.array([3, 4]))
    assert some.std is not None
    assert np.array_equal(some.imputed, imputed[[3, 4]])


@settings(deadline=None, max_examples=15)
@given(st.data())
def test_any_order_and_any_interruption_give_the_same_bytes(
    tmp_path_factory: pytest.TempPathFactory, data: st.DataObject
) -> None:
    base = tmp_path_factory.mktemp("order")
    z, present = example()
    write_features(base / "once", z, present)
    order = data.draw(st.permutations([(name, row) for name in WIDTHS for row in range(N)]))
    stops = data.draw(st.sets(st.integers(0, len(order))))
    ids = [str(i) for i in range(N)]
    open_writer = FeatureWriter(base / "pieces", WIDTHS, ids)
    for step, (name, row) in enumerate(order):
        if step in stops:
            open_writer.close()
            open_writer = FeatureWriter(base / "pieces", WIDTHS, ids)
            left = {(name, int(row)) for name in WIDTHS for row in open_writer.todo(name)}
            assert left == set(order[step:])
        j = list(WIDTHS).index(name)
        open_writer.fill(np.array([row]), {name: z[name][[row]]}, present[[row], j : j + 1])
    assert not (base / "pieces").exists()
    open_writer.finish()
    assert files(base / "once") == files(base / "pieces")
    assert not part_of(base / "pieces").exists()


def test_stopped_just_before_the_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    z, present = example()
    imputed = ~present
    write_features(tmp_path / "once", z, present, imputed=imputed)

    def stop(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    writer = FeatureWriter(tmp_path / "f", WIDTHS, [str(i) for i in range(N)])
    writer.fill(slice(None), z, present, imputed=imputed)
    with monkeypatch.context() as patch:
        patch.setattr(Path, "unlink", stop)
        with pytest.raises(KeyboardInterrupt):
            writer.finish()
    writer.close()
    (part_of(tmp_path / "f") / STATE).unlink()
    again = FeatureWriter(tmp_path / "f", WIDTHS, [str(i) for i in range(N)])
    assert len(again.todo("image")) == 0
    again.finish()
    assert files(tmp_path / "once") == files(tmp_path / "f")


def test_continuing_with_other_arguments(tmp_path: Path) -> None:
    FeatureWriter(tmp_path / "f", WIDTHS, range(N), info={"encoder": "a"}).close()
    with pytest.raises(InputError, match=r"begun with other arguments \(info"):
        FeatureWriter(tmp_path / "f", WIDTHS, range(N), info={"encoder": "b"})
    with pytest.raises(InputError, match="ids, split, labels"):
        FeatureWriter(tmp_path / "f", WIDTHS, range(1, N + 1), info={"encoder": "a"})
    with pytest.raises(InputError, match="order of the modalities"):
        FeatureWriter(tmp_path / "f", {"text": 3, "image": 5}, range(N), info={"encoder": "a"})
    with pytest.raises(InputError, match="run the same command again"):
        open_features(tmp_path / "f")


def test_disk_full_leaves_nothing_under_the_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    z, present = example()

    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(files_module, "write_all", full)
        with pytest.raises(InputError, match="f could not be written: no space left on device; make room"):
            write_features(tmp_path / "f", z, present)
    assert list(tmp_path.iterdir()) == []
    write_features(tmp_path / "f", z, present).verify()
    with monkeypatch.context() as patch:
        patch.setattr(pq, "write_table", full)
        with pytest.raises(InputError, match="g could not be written: no space left on device; make room"):
            write_features(tmp_path / "g", z, present)
    assert [path.name for path in tmp_path.iterdir()] == ["f"]
    with pytest.raises(InputError, match=r"g needs 4\.0 TB but .* are free"):
        FeatureWriter(tmp_path / "g", {"image": 10**12}, ["a"])


def test_writer_refuses(tmp_path: Path) -> None:
    z, present = example()
    with pytest.raises(InputError, match="row 1 has an empty id"):
        write_features(tmp_path / "f", z, present, ids=["a", "", *"bcdefghij"])
    with pytest.raises(InputError, match="there are 2 ids but z has 11 rows"):
        write_features(tmp_path / "f", z, present, ids=["a", "b"])
    with pytest.raises(InputError, match='column "split" has 1 entries but there are 11 rows'):
        write_features(tmp_path / "g", z, present, split=["train"])
    with pytest.raises(InputError, match="mixes kinds"):
        write_features(tmp_path / "g", z, present, labels=[1, "a"] + [None] * 9)
    with pytest.raises(InputError, match='cannot be called "present"'):
        write_features(tmp_path / "g", {"present": z["image"]})
    with pytest.raises(InputError, match="float16, float32 or float64"):
        write_features(tmp_path / "g", z, dtype="int8")
    bad = {name: array.copy() for name, array in z.items()}
    bad["text"][0, 1] = 1e6
    with pytest.raises(InputError, match="text has a value in row 0 that is not finite or does not fit in float16"):
        write_features(tmp_path / "g", bad, present, dtype="float16")
    assert list(tmp_path.iterdir()) == []  # what cannot be written leaves nothing behind
    writer = FeatureWriter(tmp_path / "h", WIDTHS, range(N))
    with pytest.raises(InputError, match="named twice"):
        writer.fill(np.array([0, 0]), {"text": z["text"][:2]})
    with pytest.raises(InputError, match="1 rows were named but z has 2"):
        writer.fill(np.array([0]), {"text": z["text"][:2]})
    with pytest.raises(InputError, match='no modality "sound"'):
        writer.fill(np.array([0]), {"sound": z["text"][:1]})
    with pytest.raises(InputError, match="begun with 3"):
        writer.fill(np.array([0]), {"text": z["image"][:1]})
    with pytest.raises(InputError, match="std=True"):
        writer.fill(np.array([0]), {"text": z["text"][:1]}, std={"text": z["text"][:1]})
    writer.fill(slice(None), {"image": z["image"]})
    with pytest.raises(InputError, match="11 of 11 rows of text are not written yet"):
        writer.finish()
    write_features(tmp_path / "f2", z, present)
    with pytest.raises(InputError, match="exists; remove it"):
        write_features(tmp_path / "f2", z, present)
    (tmp_path / "empty").mkdir()
    assert len(write_features(tmp_path / "empty", z, present)) == N


def broken(path: Path, what: str) -> None:
    if what == "missing":
        (path / "text.npy").unlink()
    elif what == "truncated":
        os.truncate(path / "text.npy", 140)
    elif what == "rows":
        np.save(path / "text.npy", np.zeros((4, 3), dtype="float32"))
    elif what == "rows, same size":
        np.save(path / "text.npy", np.zeros((3, 11), dtype="float32"))
    elif what == "columns":
        np.save(path / "present.npy", np.zeros((N, 3), dtype=bool))
        head = json.loads((path / "features.json").read_text())
        head["files"].pop("present.npy")
        (path / "features.json").write_text(json.dumps(head))
    elif what == "no table":
        (path / "meta.parquet").unlink()
    elif what == "bad table":
        (path / "meta.parquet").write_bytes(b"PAR1")
    elif what == "short table":
        pq.write_table(pa.table({"id": ["a"]}), path / "meta.parquet")
    elif what == "twice":
        pq.write_table(pa.table({"id": ["a"] * N}), path / "meta.parquet")


@pytest.mark.parametrize(
    ("what", "said"),
    [
        ("missing", "text.npy is missing; the directory is incomplete"),
        ("truncated", "text.npy has 140 bytes but 260 were written"),
        ("rows", "text.npy has 176 bytes but 260 were written"),
        ("rows, same size", r"text.npy has shape \(3, 11\) but features.json says 11 rows"),
        ("columns", r"present.npy has shape \(11, 3\) but there are 11 rows and 2 modalities \(image, text\)"),
        ("no table", "meta.parquet is missing"),
        ("bad table", "meta.parquet cannot be read as Parquet"),
        ("short table", "has 1 rows but the features have 11"),
        ("twice", "1 ids occur more than once"),
    ],
)
def test_damaged_directory(tmp_path: Path, what: str, said: str) -> None:
    z, present = example()
    write_features(tmp_path / "f", z, present)
    broken(tmp_path / "f", what)
    with pytest.raises(InputError, match=said):
        _ = open_features(tmp_path / "f").ids


def test_verify_finds_one_changed_bit(tmp_path: Path) -> None:
    z, present = example()
    features = write_features(tmp_path / "f", z, present)
    raw = bytearray((tmp_path / "f" / "text.npy").read_bytes())
    raw[-1] ^= 1
    (tmp_path / "f" / "text.npy").write_bytes(raw)
    with pytest.raises(InputError, match=r"text.npy changed after writing"):
        features.verify()


def test_directory_made_by_hand(tmp_path: Path) -> None:
    z, present = example()
    np.save(tmp_path / "text.npy", np.where(present[:, [1]], z["text"], np.nan))
    np.save(tmp_path / "image.npy", np.where(present[:, [0]], z["image"], np.nan))
    features = open_features(tmp_path)
    assert features.names == ("image", "text")
    assert np.array_equal(features.present, present)
    assert features.ids[10] == "10"
    np.save(tmp_path / "present.npy", present)
    pq.write_table(pa.table({"split": ["train"] * N}), tmp_path / "meta.parquet")
    features = open_features(tmp_path)
    assert np.array_equal(features.present, present)
    assert features.split is not None
    assert features.ids[10] == "10"
    with pytest.raises(InputError, match="checksums"):
        features.verify()
    os.truncate(tmp_path / "text.npy", 140)
    with pytest.raises(InputError, match=r"text.npy: its header says float32 of shape \(11, 3\), 132 bytes, but 12"):
        open_features(tmp_path)


@pytest.mark.parametrize(
    "values",
    [[None] * N, [[]] * N, [["a"], None] + [[]] * 9, [True] * N, [1.5, None] * 5 + [2.0], np.arange(N, dtype="u1")],
)
def test_columns_of_many_kinds_survive_continuing(tmp_path: Path, values: list[object]) -> None:
    FeatureWriter(tmp_path / "f", WIDTHS, range(N), columns={"c": values}).close()
    writer = FeatureWriter(tmp_path / "f", WIDTHS, range(N), columns={"c": values})
    z, present = example()
    writer.fill(slice(None), z, present)
    assert writer.finish().column("c").tolist() == list(values)


def test_what_a_killed_start_left_is_removed_when_the_run_goes_on(tmp_path):
    """Killed after the unfinished directory got its name, before the scratch directory beside it was removed."""
    FeatureWriter(tmp_path / "f", WIDTHS, ["a", "b"]).close()
    assert [path.name for path in tmp_path.iterdir()] == ["f.part"]
    (tmp_path / ".f.part.calmrl-abcd1234").mkdir()
    FeatureWriter(tmp_path / "f", WIDTHS, ["a", "b"]).close()
    assert [path.name for path in tmp_path.iterdir()] == ["f.part"]


def test_two_writers_exclude_each_other(tmp_path: Path) -> None:
    z, present = example()
    with FeatureWriter(tmp_path / "f", WIDTHS, range(N)) as writer:
        writer.fill(slice(None), z, present)
        with pytest.raises(InputError, match=r"another run is writing .*f; wait until it has ended"):
            FeatureWriter(tmp_path / "f", WIDTHS, range(N))
        writer.finish().verify()
    with pytest.raises(InputError, match="f exists; remove it"):
        write_features(tmp_path / "f", z, present)
    assert [path.name for path in tmp_path.iterdir()] == ["f"]


def four() -> dict[str, np.ndarray]:
    return {"image": np.ones((4, 3), np.float32), "text": np.ones((4, 2), np.float32)}


def test_what_is_shown_of_features() -> None:
    features = FeatureSet(four(), name="four")
    assert repr(features) == "FeatureSet(four: 4 rows; image 3 (4 of 4), text 2 (4 of 4))"
    assert repr(FeatureSet(four(), path=Path("x"))).startswith("FeatureSet(x: 4 rows")
    assert repr(FeatureSet(four())).startswith("FeatureSet(in memory: 4 rows")


def test_opening_says_what_is_known(tmp_path: Path) -> None:
    with pytest.raises(InputError) as caught:
        open_features(tmp_path / "f")
    assert str(caught.value) == f"no features at {tmp_path / 'f'}"
    with pytest.raises(InputError, match=r"neither features.json nor any"):
        open_features(tmp_path)
    (tmp_path / "x.csv").write_text("a,b")
    with pytest.raises(InputError, match=r"suffix '.csv'; .* \.npz"):
        open_features(tmp_path / "x.csv")
    features = write_features(tmp_path / "f", four(), split=["train"] * 4, info={"a": 1})
    assert (features.name, features.source, features.path) == ("f", str(tmp_path / "f"), tmp_path / "f")
    some = features.select("train")
    assert (some.name, some.source, some.info, some.path) == ("f", str(tmp_path / "f"), {"a": 1}, None)
    with pytest.raises(InputError, match=r"only a feature directory with a features\.json has checksums"):
        some.verify()
    (tmp_path / "f" / "features.json").unlink()
    with pytest.raises(InputError, match="has checksums to verify"):
        features.verify()
