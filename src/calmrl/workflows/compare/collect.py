"""The results of all jobs as results.json has them, and what they say in sentences."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any, cast

import numpy as np

from calmrl._support.text import listed, plural
from calmrl.config import CompareConfig
from calmrl.data.media.problems import counts_of_test
from calmrl.data.patterns import completeness
from calmrl.metrics.measures import TidyRow
from calmrl.metrics.significance import PairedDifference, holm, mean_interval, paired_bootstraps
from calmrl.training.methods import Method, find_method
from calmrl.workflows.compare.jobs import JobResult
from calmrl.workflows.compare.plan import Job, features_of, place_of

SURE = 0.05


Place = tuple[str, str]  # data set and setting


def average(
    rows: Sequence[TidyRow], place: Place, metric: str = "R@1", task: str = "average"
) -> dict[str, dict[int, float]]:
    """method -> seed -> value."""
    values: dict[str, dict[int, float]] = {}
    for row in rows:
        if ((row["dataset"], row["setting"]), row["task"], row["metric"]) == (place, task, metric):
            values.setdefault(row["method"], {})[row["seed"]] = row["value"]
    return values


def in_words(
    places: Mapping[Place, str],
    rows: Sequence[TidyRow],
    tests: Mapping[str, SettingTests | None],
    methods: Sequence[str],
) -> list[str]:
    """Place by place: which method is best, how the aligner compares with the best others, and what its anchors do.

    `places` maps data set and setting to the name that `tests` and the sentences use; `methods` are those compared, without
    swept values.
    """
    sentences: list[str] = []
    for place, name in places.items():
        values = average(rows, place)
        means = {m: float(np.mean(list(v.values()))) for m, v in values.items() if m in methods}
        real = {method: mean for method, mean in means.items() if not find_method(method).ideal}
        if not real:
            continue
        best = max(real, key=lambda method: real[method])
        level = [method for method in real if f"{real[method]:.1f}" == f"{real[best]:.1f}"]
        who = f"{best} has the best mean" if len(level) == 1 else f"{listed(level)} have the best mean"
        interval = mean_interval(list(values[best].values()))
        spread = "" if interval.half is None else f" ± {interval.half:.1f}"
        ideal = [
            f" With nothing missing, {method} reaches {means[method]:.1f}."
            for method in means
            if find_method(method).ideal
        ]
        text = f"{who}: R@1 {real[best]:.1f}{spread} over all directions{_by_chance(rows, place)}.{''.join(ideal)}"
        parts = (text, *_aligner(tests[name], real), *_shift(rows, place, methods))
        sentences += [f"{name}: {sentence}" for sentence in parts]
    return sentences


def _by_chance(rows: Sequence[TidyRow], place: Place) -> str:
    levels = [value for seeds in average(rows, place, "chance R@1").values() for value in seeds.values()]
    return f" (by chance {np.mean(levels):.1f})" if levels else ""


def _aligner(tests: SettingTests | None, means: dict[str, float]) -> list[str]:
    """The aligner against the best methods without and with a latent model."""
    plain = None if tests is None else tests.plain
    sentences = _against(plain, means, "the best method without a latent model")
    if plain is None or tests is None or tests.against != plain.against:
        sentences += _against(tests, means, "the best of the methods that start from the latent model")
    return sentences


def _against(tests: SettingTests | None, means: dict[str, float], what: str) -> list[str]:
    if tests is None or "aligner" not in tests.methods:
        return []
    gain, low, high, p = tests.methods["aligner"]
    other = f"{tests.against} ({means[tests.against]:.1f}), {what}"
    bounds = f"{round(gain, 1) + 0.0:+.1f} points, 95 % interval {low:+.1f} to {high:+.1f}"
    if p is not None and p < SURE:
        return [f"aligner is {'better' if gain > 0 else 'worse'} than {other}: {bounds}."]
    return [f"aligner is not distinguishable from {other}: {bounds}; no difference shown."]


def _shift(rows: Sequence[TidyRow], place: Place, methods: Sequence[str]) -> list[str]:
    shifts = [average(rows, place, "anchor_shift", task) for task in ("observed", "calibrated")]
    measured = [name for name in shifts[1] if name in shifts[0] and name in methods]
    name = next((name for name in measured if find_method(name).ours and find_method(name).latent), None)
    if name is None:
        return []
    before, after = (shift[name] for shift in shifts)
    b, a = (float(np.mean(list(v.values()))) for v in (before, after))
    verb = "brings anchors closer to" if a < b else "moves anchors away from"
    closer = sum(after[seed] < before[seed] for seed in before)
    return [
        f"imputing what test items lack {verb} those of complete items (distance {b:.3f} to {a:.3f} with {name}; closer "
        f"in {closer} of {plural(len(before), 'seed')})."
    ]


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
        cast(TidyRow, job.labels() | dict(row) | _level(config, job))
        for job, result in results.items()
        for row in result.rows
    ]
    places = {job[:2]: place_of(config, *job[:2]) for job in results}
    tests = {place: _tests(config, results, *where) for where, place in places.items()}
    examples = {job: result.examples for job, result in results.items() if result.examples}
    first = {job: result for job, result in results.items() if job.seed == config.seeds[0]}
    meta = {
        "command": command,
        "version": __version__,
        "config": config.model_dump(mode="json"),
        "datasets": {dataset: _about(config.only(dataset)) for dataset in config.names},
        "settings": {place: describe(config.only(dataset), s) for (dataset, s), place in places.items()},
        "methods": {
            row: {"about": method.about, "ours": method.ours, "ideal": method.ideal}
            for row, method in _methods(results).items()
        },
        "patterns": {
            places[job[:2]]: result.patterns for job, result in first.items() if not find_method(job.method).ideal
        },
        "training": {
            places[job[:2]]: _training_rows(config.only(job.dataset), result)
            for job, result in first.items()
            if not find_method(job.method).ideal
        },
        "curves": [
            {"setting": places[job[:2]], "method": job.row, "seed": job.seed, **point}
            for job, result in first.items()
            for point in result.curve
        ],
        "maps": {_of_dataset(config, job): example["map"] for job, example in examples.items() if "map" in example},
        "neighbours": [
            {"method": _of_dataset(config, job), **query}
            for job, example in examples.items()
            for query in example["neighbours"]
        ],
        "chosen": [{**job.labels(), **result.trials[result.chosen]} for job, result in results.items()],
        "tests": {place: {} if test is None else test.as_json() for place, test in tests.items()},
        "notes": [
            *notes,
            *(
                f"{places[job[:2]]}: {job.row} chose {result.choice} (seed {job.seed})."
                for job, result in first.items()
                if result.choice and find_method(job.method).ours
            ),
            *_left_out(config, results),
        ],
        "words": in_words(places, rows, tests, config.methods),
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
        if section.rate == 1:
            return f"every training row keeps only {kept}"
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
    features = features_of(config.source)
    widths = {name: array.shape[1] for name, array in features.z.items() if name in (config.modalities or features.z)}
    lost = counts_of_test(features.info.get("left_out", {}), whole=config.source.resplit is not None)
    return {"rows": len(features), "modalities": widths, "source": features.source, "left_out": lost}


def _training_rows(config: CompareConfig, result: JobResult) -> dict[str, Any]:
    """How complete the training rows of a job are; `config` is about one data set."""
    names = list(_about(config)["modalities"])
    has = [name in pattern["has"] for pattern in result.patterns for name in names]
    rows = [pattern["rows"] for pattern in result.patterns]
    return asdict(completeness(np.array(has, dtype=bool).reshape(len(rows), len(names)), rows))


def _of_dataset(config: CompareConfig, job: Job) -> str:
    return job.row if len(config.names) == 1 else f"{job.row}, {job.dataset}"


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
        who = ", ".join(dict.fromkeys(job.row for job in jobs))
        seeds = ", ".join(str(seed) for seed in dict.fromkeys(job.seed for job in jobs))
        sentences.append(f"{places}: not measured for {who} (seeds {seeds}): {reason}.")
    return sentences


def _tests(config: CompareConfig, results: Mapping[Job, JobResult], dataset: str, setting: str) -> SettingTests | None:
    """Paired bootstrap over test items, p corrected by Holm; None where there is no other method."""
    here = {job: result for job, result in results.items() if job[:2] == (dataset, setting)}
    methods = _methods(here)
    values: dict[str, list[JobResult]] = {row: [] for row in methods}
    for job, result in here.items():  # seeds in the order of the config
        values[job.row].append(result)
    first = next(iter(values.values()))
    aligned = len({tuple(result.items) for each in values.values() for result in each}) == 1
    hits = {row: _hits(each, aligned) for row, each in values.items() if methods[row].hubs is None}
    groups = None if aligned and _alike(first) else _asking(first)
    others = {row: float(hit.mean()) for row, hit in hits.items() if not (methods[row].ours or methods[row].ideal)}
    plain = {row: mean for row, mean in others.items() if not methods[row].latent}
    if not others:
        return None
    ours = [row for row in hits if methods[row].ours]
    rivals = [max(means, key=lambda row: means[row]) for means in (others, plain) if means]
    pairs = [(hits[row], hits[rival]) for rival in rivals for row in ours]
    drawn = iter(paired_bootstraps(pairs, groups=groups) if pairs else ())
    against = [_corrected(rival, {row: next(drawn) for row in ours}) for rival in rivals]
    return replace(against[0], plain=against[1]) if plain else against[0]


def _methods(jobs: Iterable[Job]) -> dict[str, Method]:
    """Row -> its method, in the order of the jobs."""
    return {job.row: find_method(job.method) for job in jobs}


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
