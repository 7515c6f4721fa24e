"""metrics.jsonl and trackers: what is recorded of a run, and what a resumed run keeps of it."""

from __future__ import annotations

import json
from types import SimpleNamespace

import pytest

from calmrl.errors import InputError, MissingExtraError
from calmrl.training.checkpoints import Records, read_records
from calmrl.training.loop import close_trackers, flat, open_trackers


def test_records_are_lines_of_json_without_numbers_that_are_none(tmp_path):
    records = Records(tmp_path / "m.jsonl")
    records.write("train", 1, loss=float("nan"), rate=float("inf"), note="x", rows=3)
    written = (tmp_path / "m.jsonl").read_text()  # before it is closed
    assert json.loads(written) == {"kind": "train", "step": 1, "loss": None, "rate": None, "note": "x", "rows": 3}
    assert written.endswith("\n")
    records.close()
    assert records.file.closed


def test_a_resumed_run_keeps_what_was_before_its_checkpoint(tmp_path):
    path = tmp_path / "m.jsonl"
    records = Records(path)
    for kind, step in (("start", 0), ("train", 1), ("train", 2), ("validation", 2), ("end", 2), ("train", 3)):
        records.write(kind, step)
    records.close()
    with path.open("a") as file:
        file.write('{"kind": "tra')  # a kill
    assert len(read_records(path)) == 6
    assert [record["step"] for record in read_records(path, "train")] == [1, 2, 3]
    Records(path, upto=2).close()
    assert [(record["kind"], record["step"]) for record in read_records(path)] == [
        ("start", 0),
        ("train", 1),
        ("train", 2),
        ("validation", 2),
    ]
    more = Records(path)
    more.write("end", 2)
    more.close()
    assert len(read_records(path)) == 5  # without `upto` it appends


@pytest.mark.parametrize("line", ['{"kind": "train", "step": "1"}', '{"kind": 1, "step": 1}'])
def test_a_record_with_a_wrong_field_is_named_by_its_line(line, tmp_path):
    path = tmp_path / "m.jsonl"
    path.write_text('{"kind": "train", "step": 1}\n' + line + "\n")
    with pytest.raises(InputError, match=r"m\.jsonl line 2 .*kind is a text and step a number"):
        read_records(path)


def test_records_on_a_full_disk(tmp_path):
    records = Records(tmp_path / "m.jsonl")
    records.file.close()
    records.file = open("/dev/full", "w")  # noqa: SIM115
    with pytest.raises(
        InputError, match=r"m\.jsonl cannot be written \(.*No space.*free some space, then continue with `resume=True`"
    ):
        records.write("train", 1)
    records.close()


def test_trackers_get_the_settings_flat():
    started = []
    accelerator = SimpleNamespace(init_trackers=lambda name, config: started.append((name, config)), trackers=[])
    assert open_trackers(accelerator, [], {"a": 1}) is False
    assert started == []
    assert open_trackers(accelerator, ["tensorboard"], {"a": {"b": 1, "c": {}}, "d": [2], "e": None}) is True
    assert started == [("calmrl", {"a.b": 1, "a.c": "{}", "d": "[2]", "e": "None"})]
    assert flat({"x": True, "y": 0.5, "z": "t"}) == {"x": True, "y": 0.5, "z": "t"}
    with pytest.raises(MissingExtraError, match="the tracker nosuchtracker"):
        open_trackers(accelerator, ["nosuchtracker"], {})
    ended = []
    accelerator.trackers = [SimpleNamespace(finish=lambda: ended.append(1))] * 2
    close_trackers(accelerator)
    assert ended == [1, 1]
