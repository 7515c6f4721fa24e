"""The demo: the error is what it says, the words follow the numbers, the files are there."""

from __future__ import annotations

import json
import re

import numpy as np
import pytest
import torch

from calmrl.cli import main
from calmrl.config import load
from calmrl.demo import in_words, write_report
from calmrl.demo.compare import nmse, one_thread

SMALL = ["datasets=[digits]", "seeds=[0, 1]", "imputers={mean: {method: mean}, ridge: {method: ridge}}"]


def _rows(**values):
    return [
        {
            "dataset": "d",
            "method": method,
            "seed": seed,
            "task": "imputation",
            "metric": "nmse",
            "value": v,
            "n": 9,
            "seconds": 1,
        }
        for method, found in values.items()
        for seed, v in enumerate(found)
    ]


def test_the_error_of_the_mean_is_one_and_of_the_truth_zero():
    rng = np.random.default_rng(0)
    present = rng.random((200, 2)) < 0.8
    z = {"a": rng.normal(3, 9, size=(200, 4)), "b": rng.normal(size=(200, 3))}
    for j, name in enumerate(z):
        z[name][~present[:, j]] = np.inf  # never looked at
    hidden = present & (rng.random((200, 2)) < 0.5)
    mean = {name: np.broadcast_to(a[present[:, j]].mean(axis=0), a.shape) for j, (name, a) in enumerate(z.items())}
    assert nmse(z, mean, present, hidden) == pytest.approx(1)
    assert nmse(z, z, present, hidden) == 0
    half = {name: (mean[name] + z[name]) / 2 for name in z}
    assert nmse(z, half, present, hidden) == pytest.approx(0.25)


def test_one_thread_is_for_the_time_of_the_block():
    before = torch.get_num_threads()
    with one_thread():
        assert torch.get_num_threads() == 1
    assert torch.get_num_threads() == before


@pytest.mark.parametrize(
    ("values", "said"),
    [
        (
            {"gaussian": [0.5, 0.6], "knn": [0.7, 0.8]},
            "gaussian is better than every other method (knn next) on all 2 seeds",
        ),
        ({"gaussian": [0.7, 0.8], "knn": [0.5, 0.6]}, "On d, knn is best: it removes 45 % of the error"),
        ({"gaussian": [0.7, 0.8], "knn": [0.5, 0.6]}, "gaussian does not win here: knn is better on all 2 seeds"),
        (
            {"gaussian": [0.5, 0.7], "knn": [0.6, 0.65]},
            "gaussian and knn are level: gaussian is better on 1 of 2 seeds",
        ),
        ({"mean": [1.0], "knn": [0.6]}, "On d, knn is best: it removes 40 %"),
        ({"gaussian": [0.7], "knn": [0.6]}, "knn is better on the one seed"),
    ],
)
def test_words_follow_the_numbers(values, said):
    (sentence,) = in_words(_rows(**values))
    assert said in sentence


def test_report_is_self_contained(tmp_path):
    rows = _rows(**{"<gaussian>": [0.5, 0.6], "knn": [0.7, 0.8]})
    config = {"missing": {"rate": 0.4, "kind": "mcar"}, "seeds": [0, 1]}
    meta = {"datasets": {"d": {"rows": 3, "modalities": {"a": 2}, "source": "s"}}, "config": config}
    write_report(rows, meta, tmp_path)
    page = (tmp_path / "report.html").read_text()
    assert "&lt;gaussian&gt;" in page
    assert "<gaussian>" not in page
    assert "0.550" in page
    assert not re.search(r"""(src|href)=["']http""", page.replace("xlink:href", ""))
    assert json.loads((tmp_path / "results.json").read_text())["rows"] == rows


def test_demo_from_the_command_line(tmp_path, capsys):
    out = tmp_path / "out"
    with pytest.raises(SystemExit) as stop:
        main(["demo", "--out", str(out), *SMALL])
    printed = capsys.readouterr()
    assert not stop.value.code, printed.err
    assert printed.out == f"{out / 'results.json'}\n"
    assert "On digits, ridge is best" in printed.err
    results = json.loads((out / "results.json").read_text())
    assert {(row["method"], row["seed"]) for row in results["rows"]} == {
        (m, s) for m in ("mean", "ridge") for s in (0, 1)
    }
    assert set(results["rows"][0]) >= {"dataset", "method", "seed", "task", "metric", "value", "n"}
    mean = [row["value"] for row in results["rows"] if row["method"] == "mean"]
    assert mean == pytest.approx([1.0, 1.0], abs=0.02)
    assert sorted(entry.name for entry in out.iterdir()) == ["config.yaml", "errors.svg", "report.html", "results.json"]
    assert load(out / "config.yaml").seeds == [0, 1]


def test_demo_refuses_to_overwrite_before_it_computes(tmp_path, capsys):
    (tmp_path / "x").write_text("mine")
    with pytest.raises(SystemExit) as stop:
        main(["demo", "--out", str(tmp_path), *SMALL])
    assert stop.value.code == 2
    assert "not empty" in capsys.readouterr().err
