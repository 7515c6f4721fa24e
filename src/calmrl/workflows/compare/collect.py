"""The results of all jobs as results.json has them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from calmrl.config import CompareConfig
from calmrl.data.features.feature_set import FeatureSet
from calmrl.metrics.measures import TidyRow
from calmrl.metrics.significance import PairedDifference, holm, paired_bootstrap
from calmrl.workflows.compare.all_jobs import methods_of
from calmrl.workflows.compare.job import Job, JobResult
from calmrl.workflows.compare.rows import method_of
from calmrl.workflows.compare.words import in_words


@dataclass(frozen=True)
class SettingTests:
    """Our methods against the best other one, and against the best one without a latent model (`plain`)."""

    against: str
    methods: dict[str, PairedDifference]
    plain: SettingTests | None = None

    def as_json(self) -> dict[str, Any]:
        plain = {} if self.plain is None else {"plain": self.plain.as_json()}
        return {"against": self.against, "methods": {m: d._asdict() for m, d in self.methods.items()}, **plain}


def collect(
    config: CompareConfig, results: Mapping[Job, JobResult], features: FeatureSet, command: str = ""
) -> dict[str, Any]:
    """{"rows": tidy rows, "meta": what is known about them}."""
    from calmrl import __version__

    dataset = features.name or "data"
    widths = {name: array.shape[1] for name, array in features.z.items() if name in (config.modalities or features.z)}
    rows = [
        TidyRow(dataset=dataset, setting=setting, method=method, seed=seed, **row, **_rate(config, setting))  # type: ignore[typeddict-item]
        for (setting, method, seed), result in results.items()
        for row in result.rows
    ]
    tests = {setting: _tests(config, results, setting) for setting in config.settings}
    examples = {method: result.examples for (_, method, _), result in results.items() if result.examples}
    first = {job: result for job, result in results.items() if job[2] == config.seeds[0]}
    meta = {
        "command": command,
        "version": __version__,
        "config": config.model_dump(mode="json"),
        "datasets": {dataset: {"rows": len(features), "modalities": widths, "source": features.source}},
        "settings": {name: describe(config, name) for name in config.settings},
        "methods": {
            name: {"about": method.about, "ours": method.ours, "ideal": method.ideal}
            for name, method in ((name, method_of(name)) for name in methods_of(config))
        },
        "patterns": {job[0]: result.patterns for job, result in first.items() if not method_of(job[1]).ideal},
        "curves": [
            {"setting": setting, "method": method, "seed": seed, **point}
            for (setting, method, seed), result in first.items()
            for point in result.curve
        ],
        "maps": {method: example["map"] for method, example in examples.items()},
        "neighbours": [{"method": m, **query} for m, example in examples.items() for query in example["neighbours"]],
        "chosen": [
            {"setting": s, "method": m, "seed": seed, **result.trials[result.chosen]}
            for (s, m, seed), result in results.items()
        ],
        "tests": {setting: {} if test is None else test.as_json() for setting, test in tests.items()},
        "words": in_words(list(config.settings), rows, tests),
    }
    return {"rows": rows, "meta": meta}


def describe(config: CompareConfig, setting: str) -> str:
    """One line on what is hidden."""
    section = config.settings[setting]
    share = f"{100 * section.rate:g} %"
    if section.regime == "continual":
        return f"heads aligned on complete rows, then trained on the {share} that lack something, without the others"
    if section.groups is not None:
        kept = " or ".join("-".join(group) for group in section.groups)
        return f"{share} of the training rows keep only {kept}, the others are complete"
    what = {"mcar": "of the blocks hidden at random", "value": "of the blocks hidden by their value"}
    return f"{share} {what.get(section.kind, 'of the rows lack one modality')}"


def _rate(config: CompareConfig, setting: str) -> dict[str, float]:
    section = config.settings[setting]
    return {"rate": section.rate} if section.kind in ("mcar", "value") else {}


def _tests(config: CompareConfig, results: Mapping[Job, JobResult], setting: str) -> SettingTests | None:
    """Paired bootstrap over test items, p corrected by Holm; None where there is no other method."""
    values = {method: [results[setting, method, seed] for seed in config.seeds] for method in methods_of(config)}
    same = len({tuple(result.items) for each in values.values() for result in each}) == 1
    hits = {method: _hits(each, same) for method, each in values.items()}
    others = {m: hit.mean() for m, hit in hits.items() if not (method_of(m).ours or method_of(m).ideal)}
    plain = {method: mean for method, mean in others.items() if not method_of(method).latent}
    return _against_best(hits, others, _against_best(hits, plain)) if others else None


def _against_best(
    hits: dict[str, np.ndarray], others: dict[str, float], plain: SettingTests | None = None
) -> SettingTests | None:
    if not others:
        return None
    best = max(others, key=lambda method: others[method])
    tests = {method: paired_bootstrap(hits[method], hits[best]) for method in hits if method_of(method).ours}
    corrected = holm({method: test.p for method, test in tests.items()})
    return SettingTests(best, {m: test._replace(p=corrected[m]) for m, test in tests.items()}, plain)


def _hits(results: list[JobResult], same: bool) -> np.ndarray:
    """Percent of hits per test item, the mean over its directions where all items take part in all of them.

    (seeds, items) where every seed has the same test items, else the items of all seeds side by side.
    """
    each = []
    for result in results:
        directions = [np.asarray(result.hits[task]) for task in sorted(result.hits)]
        alike = len({len(hits) for hits in directions}) == 1
        each.append(100 * (np.mean(directions, axis=0) if alike else np.concatenate(directions)))
    return np.stack(each) if same else np.concatenate(each)
