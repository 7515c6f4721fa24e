"""The results of all jobs as results.json has them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, cast

import numpy as np

from calmrl.config import CompareConfig
from calmrl.data.media.left_out import counts_of_test
from calmrl.metrics.measures import TidyRow
from calmrl.metrics.significance import PairedDifference, holm, paired_bootstraps
from calmrl.workflows.compare.job import JobResult
from calmrl.workflows.compare.plan import Job, place_of
from calmrl.workflows.compare.rows import features_of, method_of
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
    config: CompareConfig, results: Mapping[Job, JobResult], notes: Sequence[str] = (), command: str = ""
) -> dict[str, Any]:
    """{"rows": tidy rows, "meta": what is known about them}.

    In `meta`, a place is a setting, or "data set, setting" where there are several data sets. `notes` are remarks on the
    data that were made before anything was trained.
    """
    from calmrl import __version__

    rows = [
        cast(TidyRow, job._asdict() | dict(row) | _level(config, job))
        for job, result in results.items()
        for row in result.rows
    ]
    places = {job[:2]: place_of(config, *job[:2]) for job in results}
    tests = {place: _tests(config, results, *where) for where, place in places.items()}
    examples = {job: result.examples for job, result in results.items() if result.examples}
    first = {job: result for job, result in results.items() if job.seed == config.seeds[0]}
    used = list(dict.fromkeys(job.method for job in results))
    meta = {
        "command": command,
        "version": __version__,
        "config": config.model_dump(mode="json"),
        "datasets": {dataset: _about(config.only(dataset)) for dataset in config.names},
        "settings": {place: describe(config.only(dataset), s) for (dataset, s), place in places.items()},
        "methods": {
            name: {"about": method.about, "ours": method.ours, "ideal": method.ideal}
            for name, method in ((name, method_of(name)) for name in used)
        },
        "patterns": {
            places[job[:2]]: result.patterns for job, result in first.items() if not method_of(job.method).ideal
        },
        "curves": [
            {"setting": places[job[:2]], "method": job.method, "seed": job.seed, **point}
            for job, result in first.items()
            for point in result.curve
        ],
        "maps": {_of_dataset(config, job): example["map"] for job, example in examples.items() if "map" in example},
        "neighbours": [
            {"method": _of_dataset(config, job), **query}
            for job, example in examples.items()
            for query in example["neighbours"]
        ],
        "chosen": [{**job._asdict(), **result.trials[result.chosen]} for job, result in results.items()],
        "tests": {place: {} if test is None else test.as_json() for place, test in tests.items()},
        "notes": [
            *notes,
            *(
                f"{places[job[:2]]}: {job.method} chose {result.choice} (seed {job.seed})."
                for job, result in first.items()
                if result.choice and method_of(job.method).ours
            ),
            *_left_out(config, results),
        ],
        "words": in_words(places, rows, tests),
    }
    return {"rows": rows, "meta": meta}


def describe(config: CompareConfig, setting: str) -> str:
    """One line on what is hidden; `config` is about one data set."""
    section = config.settings[setting]
    share = f"{100 * (section.rate or 0):g} %"
    if section.kind == "as-is":
        return "nothing is hidden: rows lack what they lack in the data"
    if section.kind == "all-but":
        return f"{section.complete} rows are complete, the others lack at least one modality"
    if section.regime == "continual":
        return f"heads aligned on complete rows, then trained on the {share} that lack something, without the others"
    if section.groups is not None:
        kept = " or ".join("-".join(group) for group in section.groups)
        return f"{share} of the training rows keep only {kept}, the others are complete"
    what = {
        "mcar": "of the blocks hidden at random",
        "value": "of the blocks hidden by their value",
        "alone": "of the training rows keep one modality only",
    }
    return f"{share} {what.get(section.kind, 'of the rows lack one modality')}"


def _about(config: CompareConfig) -> dict[str, Any]:
    """Rows, widths and source of a data set."""
    assert config.source is not None
    features = features_of(config.source.model_dump_json())
    widths = {name: array.shape[1] for name, array in features.z.items() if name in (config.modalities or features.z)}
    lost = counts_of_test(features.info.get("left_out", {}), whole=config.source.resplit is not None)
    return {"rows": len(features), "modalities": widths, "source": features.source, "left_out": lost}


def _of_dataset(config: CompareConfig, job: Job) -> str:
    return job.method if len(config.names) == 1 else f"{job.method}, {job.dataset}"


def _level(config: CompareConfig, job: Job) -> dict[str, float]:
    """What a row has when settings are steps: the missing rate, or the number of complete rows."""
    section = config.only(job.dataset).settings[job.setting]
    if section.kind in ("mcar", "value", "one", "alone"):
        return {"rate": section.rate or 0.0}
    return {} if section.complete is None else {"complete": section.complete}


def _left_out(config: CompareConfig, results: Mapping[Job, JobResult]) -> list[str]:
    """A sentence for every measure that some jobs could not make, with those it concerns."""
    reasons: dict[str, list[Job]] = {}
    for job, result in results.items():
        for reason in result.left_out:
            reasons.setdefault(reason, []).append(job)
    sentences = []
    for reason, jobs in reasons.items():
        places = ", ".join(dict.fromkeys(place_of(config, *job[:2]) for job in jobs))
        who = ", ".join(dict.fromkeys(job.method for job in jobs))
        seeds = ", ".join(str(seed) for seed in dict.fromkeys(job.seed for job in jobs))
        sentences.append(f"{places}: not measured for {who} (seeds {seeds}): {reason}.")
    return sentences


def _tests(config: CompareConfig, results: Mapping[Job, JobResult], dataset: str, setting: str) -> SettingTests | None:
    """Paired bootstrap over test items, p corrected by Holm; None where there is no other method."""
    here = {job: result for job, result in results.items() if job[:2] == (dataset, setting)}
    methods = list(dict.fromkeys(job.method for job in here))
    values = {m: [here[Job(dataset, setting, m, seed)] for seed in config.seeds] for m in methods}
    aligned = len({tuple(result.items) for each in values.values() for result in each}) == 1
    hits = {method: _hits(each, aligned) for method, each in values.items() if method_of(method).hubs is None}
    groups = None if aligned and _alike(values[methods[0]]) else _asking(values[methods[0]])
    others = {m: float(hit.mean()) for m, hit in hits.items() if not (method_of(m).ours or method_of(m).ideal)}
    plain = {method: mean for method, mean in others.items() if not method_of(method).latent}
    if not others:
        return None
    ours = [method for method in hits if method_of(method).ours]
    rivals = [max(means, key=lambda method: means[method]) for means in (others, plain) if means]
    pairs = [(hits[method], hits[rival]) for rival in rivals for method in ours]
    drawn = iter(paired_bootstraps(pairs, groups=groups) if pairs else ())
    against = [_corrected(rival, {method: next(drawn) for method in ours}) for rival in rivals]
    return replace(against[0], plain=against[1]) if plain else against[0]


def _corrected(rival: str, tests: dict[str, PairedDifference]) -> SettingTests:
    corrected = holm({method: test.p for method, test in tests.items()})
    return SettingTests(rival, {m: test._replace(p=corrected[m]) for m, test in tests.items()})


def _alike(results: list[JobResult]) -> bool:
    """Whether the same items ask in every direction of every seed."""
    return all(len({tuple(asking) for asking in result.asked.values()}) == 1 for result in results)


def _hits(results: list[JobResult], aligned: bool) -> np.ndarray:
    """Percent of hits per test item, the mean over its directions where all items take part in all of them.

    (seeds, items) where moreover every seed has the same test items, else all queries side by side (see `_asking`).
    """
    alike = _alike(results)
    each = []
    for result in results:
        directions = [np.asarray(result.hits[task]) for task in sorted(result.hits)]
        each.append(100 * (np.mean(directions, axis=0) if alike else np.concatenate(directions)))
    return np.stack(each) if alike and aligned else np.concatenate(each)


def _asking(results: list[JobResult]) -> list[str]:
    """The item behind every entry of `_hits`: what is redrawn as a whole."""
    names: list[str] = []
    alike = _alike(results)
    for result in results:
        directions = [result.asked[task] for task in sorted(result.asked)]
        names += [result.items[i] for asking in (directions[:1] if alike else directions) for i in asking]
    return names
