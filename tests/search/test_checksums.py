"""An index notices what was changed behind its back: rows when they are read, everything when it is checked."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

pytest.importorskip("lancedb", reason="the extra search is not installed")

from calmrl import Index
from calmrl.data import FeatureSet
from calmrl.data.features.directory import meta_table
from calmrl.errors import InputError
from calmrl.search import checksums, neighbours, store, update
from calmrl.workflows.check import check_source
from tests.support.colour_world import settings

N = 40
RNG = np.random.default_rng(0)
SHARED = RNG.normal(size=(N, 3))
Z = {name: (SHARED @ RNG.normal(size=(3, width))).astype(np.float32) for name, width in {"image": 6, "text": 5}.items()}


def features(rows: range = range(N)) -> FeatureSet:
    meta = meta_table(
        len(rows),
        ids=[f"item {row}" for row in rows],
        labels=[["even", "odd"][row % 2] for row in rows],
        text=[f"caption {row}" for row in rows],
        columns={"size": list(rows), "thumbnail": [b"RIFF%d" % row for row in rows]},
    )
    z = {name: values[rows.start : rows.stop] for name, values in Z.items()}
    return FeatureSet(z, np.ones((len(rows), 2), bool), meta, name="items")


@pytest.fixture
def index(tmp_path) -> Index:
    return Index.build(features(), tmp_path / "ix", model=settings())


def flip(file: Path) -> None:
    content = bytearray(file.read_bytes())
    content[len(content) // 3] ^= 0x55
    file.write_bytes(content)


def checked(index: Index | Path | str) -> tuple[list[str], list[str]]:
    """(problems, what was told)"""
    told: list[str] = []
    return check_source(index.path if isinstance(index, Index) else index, report=told.append), told


def test_checksums_are_right_after_every_change(index, monkeypatch):
    assert checked(index) == ([], ["40 items, all checksums right"])
    index.remove(["item 3", "item 4"])
    assert checked(index) == ([], ["38 items, all checksums right"])
    monkeypatch.setattr(store, "PIECES", 1)  # pieces are joined
    index.add(features(), removed=True)
    assert index.table.stats()["fragment_stats"]["num_fragments"] == 1
    assert checked(index) == ([], ["40 items, all checksums right"])


@pytest.mark.parametrize(
    ("values", "group", "ask"),
    [
        ({"text": "forged"}, "description", lambda index: index.search(like="item 8", k=N)),
        ({"has_1": False}, "description", lambda index: index.search(like="item 8", k=N)),
        ({"nearness": -9.0}, "description", lambda index: index.search(like="item 8", hubs=True)),
        ({"vector": [0.6, 0.8] + [0.0] * 30}, "vector", lambda index: index.search(like="item 8", k=N)),
        ({"x_0": 7.5}, "columns", lambda index: index.item("item 7")),
        ({"split": "test"}, "columns", lambda index: index.items()),
        ({"thumbnail": b"RIFF8"}, "thumbnail", lambda index: index.thumbnail("item 7")),
        ({"f_0": [1.0] * 6}, "features", lambda index: index.features_of("item 7")),
        ({"stamps": "{}"}, "record", None),
    ],
)
def test_a_row_that_is_not_what_was_written(index, values, group, ask):
    if "vector" in values:
        values = {"vector": values["vector"][: index.layout["width"]]}
    if ask is not None:
        ask(index)
    index.table.update(where="id = 'item 7'", values=values)
    checksums.record(Path(index.path))  # so that the row alone is wrong
    if ask is not None:
        with pytest.raises(InputError, match=rf"ix is damaged: .*'item 7' \({group}\); .*calmrl check .*ix'?$"):
            ask(index)
    (problem,), told = checked(index)
    assert f"1 of 40 items are not what was written ({group} of 1; first: 'item 7')" in problem
    quoted = shlex.quote(str(index.path))
    assert f"calmrl remove {quoted} 'item 7', then calmrl add {quoted} SOURCE --removed" in problem
    assert told == []
    index.remove("item 7")
    index.add(features(), removed=True)
    assert checked(index) == ([], ["40 items, all checksums right"])


def test_many_damaged_items(index, monkeypatch):
    index.table.update(values={"text": "forged"})
    (missing, problem), _ = checked(index)
    assert "files of" in missing
    assert "40 of 40 items are not what was written (description of 40" in problem
    assert problem.endswith("make it again with calmrl index SOURCE --out NEW")


def test_digests_do_not_depend_on_pieces(index):
    rows = index.table.search().limit(N).to_arrow()
    names = rows.schema.names
    in_pieces = pa.concat_tables([rows.slice(0, 7), rows.slice(7, 1), rows.slice(8)])
    assert in_pieces["vector"].num_chunks > 1
    for table in (rows, in_pieces, rows.slice(11, 5), rows.slice(0, 0)):
        assert checksums.damaged_rows(table, names, checksums.GROUPS) == {}
    written = rows[checksums.COLUMN].to_pylist()
    assert len(set(written)) == N
    swapped = rows.set_column(
        names.index("thumbnail"), "thumbnail", rows["thumbnail"].take(pa.array([1, 0, *range(2, N)]))
    )
    assert checksums.damaged_rows(swapped, names, checksums.GROUPS) == {
        "item 0": ["thumbnail"],
        "item 1": ["thumbnail"],
    }
    lacking = rows.set_column(names.index("checksum"), "checksum", pa.array([None] * N, pa.binary()))
    assert len(checksums.damaged_rows(lacking, names, ["vector"])) == N


@pytest.mark.parametrize("part", ["_indices", "_deletions", "_versions", "_transactions", "data"])
def test_a_damaged_file_is_named(tmp_path, monkeypatch, capfd, part):
    monkeypatch.setattr(neighbours, "EXACT_ROWS", 10)
    index = Index.build(features(), tmp_path / "ix", model=settings())
    index.remove("item 3")
    file = min(file for file in (Path(index.path) / "items.lance" / part).rglob("*") if file.is_file())
    assert checked(index)[0] == []
    flip(file)
    problems, told = checked(index)
    assert f"1 file of {index.path} is not what was written (items.lance/{part}/" in problems[0]
    assert file.name in problems[0]
    assert problems[0].endswith("copy the index again, or make it again with calmrl index SOURCE --out NEW")
    assert "all checksums right" not in "".join(told)
    assert capfd.readouterr().err == ""  # no panic of LanceDB either
    if part in ("_indices", "_deletions"):
        with pytest.raises(
            InputError, match=rf"is damaged \(items.lance/{part}/.*\), so it is not changed; .*calmrl check"
        ):
            index.remove("item 5")


def test_a_lost_version_is_noticed(index):
    index.remove("item 3")
    min((Path(index.path) / "items.lance" / "_versions").glob("*.manifest")).unlink()
    assert len(Index.open(index.path)) == N  # the item is there again
    (problem,), _ = checked(index)
    assert f"1 file of {index.path} is missing (items.lance/_versions/" in problem


def test_the_list_and_the_parts_are_verified_too(index):
    header = Path(index.path) / "checksums.json"
    content = header.read_text()
    header.write_text(content.replace("items.lance", "items_lance", 1))
    assert f"{header} is damaged: it is not what was written" in checked(index)[0][0]
    header.write_text(content)
    database = store.connect(index.path)
    parts = database.open_table("parts").to_arrow().to_pylist()
    (layout,) = [row for row in parts if row["name"] == "index.json"]
    layout["content"] = layout["content"].replace(b'"fitted_on": 40', b'"fitted_on": 41')
    database.create_table("parts", parts, mode="overwrite")
    with pytest.raises(InputError, match=r"ix is damaged: its part index\.json is not what was written"):
        Index.open(index.path)


def test_a_change_that_is_stopped_before_its_checksums(index, monkeypatch):
    def killed(path: Path) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(update.checksums, "record", killed)
        with pytest.raises(KeyboardInterrupt):
            index.remove("item 3")
    assert len(index) == N - 1
    (problem,), told = checked(index)
    assert "files of" in problem
    assert (
        f"change that is under way or was stopped; to record them: calmrl add {shlex.quote(str(index.path))} SOURCE"
        in problem
    )
    assert told == []
    index.add(features(range(3)))
    assert checked(index) == ([], ["39 items, all checksums right"])


def test_an_index_of_a_version_without_checksums(tmp_path, monkeypatch):
    with monkeypatch.context() as patch:
        patch.setattr(store, "VERSION", 1)
        index = Index.build(features(range(30)), tmp_path / "ix", model=settings())
    (tmp_path / "ix" / "checksums.json").unlink()
    assert "checksum" not in index.table.schema.names
    assert index.search(like="item 7", k=1)
    no_own = "its items have no checksums of their own, which a search verifies; make the index again to have them"
    (problem,), told = checked(index)
    assert "have no checksum: of a version without checksums, or" in problem
    assert told == [no_own]
    index.add(features())
    assert len(index) == N
    assert checked(index) == ([], ["40 items, all checksums right", no_own])


def test_an_address_has_checksums_of_its_rows(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    address = f"file://{tmp_path}/ix"
    index: Any = Index.build(features(), address, model=settings())
    index.remove("item 3")
    assert not (tmp_path / "ix" / "checksums.json").exists()
    assert checked(address) == ([], ["39 items, all checksums right"])
    index.table.update(where="id = 'item 7'", values={"text": "forged"})
    (problem,), _ = checked(address)
    assert "1 of 39 items are not what was written (description of 1; first: 'item 7')" in problem
