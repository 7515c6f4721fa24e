"""Several data sets in one comparison: one table, tests of each, and results that are not made again."""

from __future__ import annotations

import io
import json

import pytest
from rich.console import Console

from calmrl.cli.compare import WIDTH, tables
from calmrl.config import CompareConfig
from calmrl.errors import InputError
from calmrl.workflows import compare
from calmrl.workflows.compare import jobs as jobs_module
from calmrl.workflows.compare.jobs import run_job
from calmrl.workflows.compare.plan import jobs_of
from tests.support.tiny_comparison import SMALL, world_source

WORLD, OTHER = world_source(200), world_source(200, 0.3, 2)
VALUES = SMALL | {
    "datasets": {"whole": {"source": WORLD}, "holes": {"source": OTHER, "settings": "as-is"}},
    "settings": {"half": {"kind": "mcar", "rate": 0.5}, "few": {"kind": "all-but", "complete": 30}},
    "methods": ["contrastive", "closed-form", "ideal"],
    "measures": ["examples"],
    "seeds": [0, 1],
    "trials": 1,
}
PLACES = [("whole", "half"), ("whole", "few"), ("holes", "as-is")]


def config(**changes) -> CompareConfig:
    return CompareConfig.model_validate(VALUES | changes)


@pytest.fixture(scope="module")
def comparison(tmp_path_factory):
    return compare(config(), tmp_path_factory.mktemp("several") / "out")


def test_one_tidy_file_with_a_column_for_the_data_set(comparison):
    content = json.loads((comparison.directory / "results.json").read_text())
    rows, meta = content["rows"], content["meta"]
    assert list(dict.fromkeys((row["dataset"], row["setting"]) for row in rows)) == PLACES
    assert {row["complete"] for row in rows if row["setting"] == "few"} == {30}
    assert {row["rate"] for row in rows if row["setting"] == "half"} == {0.5}
    assert set(meta["tests"]) == {"whole, half", "whole, few", "holes, as-is"}
    for test in meta["tests"].values():
        assert test["against"] == "contrastive"
        assert set(test["methods"]) == {"closed-form"}
        assert 0 < test["methods"]["closed-form"]["p"] <= 1
    assert set(meta["datasets"]) == {"whole", "holes"}
    assert "closed-form, holes" in meta["maps"]
    methods = {place: {row["method"] for row in rows if (row["dataset"], row["setting"]) == place} for place in PLACES}
    assert ["ideal" in methods[place] for place in PLACES] == [True, True, False]


def test_one_table_on_screen_within_the_width(comparison):
    console = Console(width=WIDTH, record=True, file=io.StringIO())
    shown = tables(comparison.results)
    assert len(shown) == 1
    console.print(shown[0])
    text = console.export_text()
    assert all(len(line) <= WIDTH for line in text.splitlines())
    assert "by chance" in text
    for word in ("whole", "holes", "half", "few", "as-is", "contrastive", "closed-form", "±"):
        assert word in text
    page = (comparison.directory / "report.html").read_text()
    assert all(part in page for part in ("whole, half", "holes, as-is", "chance", "ideal is left out"))


def test_only_what_is_new_is_made(comparison, monkeypatch):
    """Another data set beside them, and a changed option of one of them."""
    made = []
    monkeypatch.setattr(jobs_module, "run_job", lambda c, job: made.append(job) or run_job(c, job))
    folder = comparison.directory / "jobs"
    before = config()
    planned = [job for job in jobs_of(before) if (job.dataset, job.method) != ("holes", "ideal")]
    jobs_module.run_jobs(before, folder, jobs=planned)
    assert not made
    third = config(
        datasets=VALUES["datasets"] | {"again": {"source": OTHER, "settings": "as-is"}}, methods=["closed-form"]
    )
    jobs_module.run_jobs(third, folder)
    assert {job.dataset for job in made} == {"again"}
    made.clear()
    changed = config(
        datasets=VALUES["datasets"] | {"holes": {"source": OTHER, "settings": "as-is", "relevant_by": "labels"}}
    )
    jobs_module.run_jobs(changed, folder, jobs=planned)
    assert {job.dataset for job in made} == {"holes"}


def test_an_error_in_a_worker_names_its_job(tmp_path):
    few = {"few": {"kind": "all-but", "complete": 5000}}
    broken = config(datasets={"whole": {"source": WORLD}}, settings=few, workers=2)
    message = r"data set whole, setting few, method \S+, seed \d: .*complete=, how many of the 120 complete rows"
    with pytest.raises(InputError, match=message):
        jobs_module.run_jobs(broken, tmp_path)
