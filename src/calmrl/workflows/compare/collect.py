"""The results of all jobs as results.json has them, and what they say in words."""

from __future__ import annotations

from typing import Any

import numpy as np

from calmrl.config import CompareConfig
from calmrl.metrics.significance import holm, mean_interval, paired_bootstrap
from calmrl.training.recipes import about, is_ideal, is_ours
from calmrl.workflows.compare.job import Job
from calmrl.workflows.compare.jobs import methods_of

Row = dict[str, Any]
SURE = 0.05


def collect(
    config: CompareConfig, results: dict[Job, Any], dataset: str, known: dict[str, Any]
) -> tuple[list[Row], dict[str, Any]]:
    """(tidy rows, meta). `known` says what is known about the data set."""
    rows = [
        {"dataset": dataset, "setting": setting, "method": method, "seed": seed, **one, **_rate(config, setting)}
        for (setting, method, seed), result in results.items()
        for one in result["rows"]
    ]
    some = {job: result["examples"] for job, result in results.items() if result["examples"]}
    meta = {
        "config": config.model_dump(mode="json"),
        "datasets": {dataset: known},
        "settings": {name: describe(config, name) for name in config.settings},
        "methods": {
            method: {
                "about": about(_base(method)),
                "ours": is_ours(_base(method)),
                "ideal": is_ideal(_base(method)),
            }
            for method in methods_of(config)
        },
        "patterns": {
            setting: result["patterns"]
            for (setting, method, seed), result in results.items()
            if seed == config.seeds[0] and not is_ideal(method)
        },
        "curves": [
            {"setting": setting, "method": method, "seed": seed, **point}
            for (setting, method, seed), result in results.items()
            if seed == config.seeds[0]
            for point in result["curve"]
        ],
        "maps": {job[1]: found["map"] for job, found in some.items()},
        "neighbours": [{"method": job[1], **one} for job, found in some.items() for one in found["neighbours"]],
        "chosen": [
            {"setting": s, "method": m, "seed": seed, **result["trials"][result["chosen"]]}
            for (s, m, seed), result in results.items()
        ],
        "tests": {setting: _tests(config, results, setting) for setting in config.settings},
    }
    meta["words"] = in_words(config, rows, meta)
    return rows, meta


def describe(config: CompareConfig, setting: str) -> str:
    """One line on what is hidden."""
    section = config.settings[setting]
    share = f"{100 * section.rate:g} %"
    if section.groups is not None:
        kept = " or ".join("-".join(group) for group in section.groups)
        return f"{share} of the training rows keep only {kept}, the others are complete"
    blocks = {
        "mcar": "blocks hidden at random",
        "value": "blocks hidden by their value",
        "one": "rows that lack one modality",
    }
    return f"{share} {blocks[section.kind]}"


def average(rows: list[Row], setting: str, metric: str = "R@1", task: str = "average") -> dict[str, dict[int, float]]:
    """method -> seed -> value."""
    found: dict[str, dict[int, float]] = {}
    for row in rows:
        if (row["setting"], row["task"], row["metric"]) == (setting, task, metric):
            found.setdefault(row["method"], {})[row["seed"]] = row["value"]
    return found


def _rate(config: CompareConfig, setting: str) -> dict[str, float]:
    section = config.settings[setting]
    return {"rate": section.rate} if section.kind in ("mcar", "value") else {}


def _tests(config: CompareConfig, results: dict[Job, Any], setting: str) -> dict[str, Any]:
    """Our methods against the best other one, and against the best that has nothing of a latent model.

    Paired bootstrap over test items, p corrected by Holm.
    """
    values = {method: [results[setting, method, seed] for seed in config.seeds] for method in methods_of(config)}
    same = len({tuple(result["items"]) for each in values.values() for result in each}) == 1
    hits = {method: _hits(each, same) for method, each in values.items()}
    others = {m: hit.mean() for m, hit in hits.items() if not is_ours(_base(m)) and not is_ideal(_base(m))}
    plain = {method: mean for method, mean in others.items() if "+latent" not in method}
    found = _against_best(hits, others)
    return found | ({"plain": _against_best(hits, plain)} if plain else {})


def _against_best(hits: dict[str, np.ndarray], others: dict[str, float]) -> dict[str, Any]:
    if not others:
        return {}
    best = max(others, key=lambda method: others[method])
    found = {method: paired_bootstrap(hits[method], hits[best]) for method in hits if is_ours(_base(method))}
    corrected = holm({method: one.p for method, one in found.items()})
    return {"against": best, "methods": {m: one._replace(p=corrected[m])._asdict() for m, one in found.items()}}


def _hits(results: list[dict[str, Any]], same: bool) -> np.ndarray:
    """Percent of hits per test item, the mean over its directions where all items take part in all of them.

    (seeds, items) where every seed has the same test items, else the items of all seeds side by side.
    """
    each = []
    for result in results:
        found = [np.asarray(result["hits"][task]) for task in sorted(result["hits"])]
        alike = len({len(hit) for hit in found}) == 1
        each.append(100 * (np.mean(found, axis=0) if alike else np.concatenate(found)))
    return np.stack(each) if same else np.concatenate(each)


def _base(method: str) -> str:
    """The method without a swept value."""
    return method.partition(" ")[0]


def in_words(config: CompareConfig, rows: list[Row], meta: dict[str, Any]) -> list[str]:
    """What came out, setting by setting, in plain sentences; also where our methods do not help."""
    said = []
    for setting in config.settings:
        values = average(rows, setting)
        means = {m: float(np.mean(list(v.values()))) for m, v in values.items() if " " not in m}
        real = {method: mean for method, mean in means.items() if not is_ideal(method)}
        if not real:
            continue
        best = max(real, key=lambda method: real[method])
        interval = mean_interval(list(values[best].values()))
        spread = "" if interval.half is None else f" ± {interval.half:.1f}"
        ideal = [f" With nothing missing it would be {means[method]:.1f}." for method in means if is_ideal(method)]
        said.append(
            f"{setting}: {best} has the best mean, R@1 {real[best]:.1f}{spread} over all directions.{''.join(ideal)}"
        )
        said += _told(setting, meta["tests"].get(setting) or {}, real) + _shift(rows, setting)
    return said


def _told(setting: str, tests: dict[str, Any], real: dict[str, float]) -> list[str]:
    """calmrl against the methods without and with a latent model."""
    plain = tests.get("plain") or {}
    said = _against(setting, plain, real, "the best method without a latent model")
    if tests.get("against") != plain.get("against"):
        said += _against(setting, tests, real, "which starts from the latent model as well")
    return said


def _against(setting: str, tests: dict[str, Any], real: dict[str, float], what: str) -> list[str]:
    found = (tests.get("methods") or {}).get("calmrl")
    if found is None:
        return []
    gain, p = found["difference"], found["p"]
    other = f"{tests['against']} ({real[tests['against']]:.1f}), {what}"
    bounds = f"{round(gain, 1) + 0.0:+.1f} points, 95 % interval {found['low']:+.1f} to {found['high']:+.1f}"
    if p is not None and p < SURE:
        word = "ahead of" if gain > 0 else "behind"
        return [f"{setting}: calmrl is {word} {other}: {bounds}. This is not noise."]
    return [f"{setting}: calmrl cannot be told from {other}: {bounds}. There it does not help."]


def _shift(rows: list[Row], setting: str) -> list[str]:
    before = average(rows, setting, "anchor_shift", "observed").get("calmrl")
    after = average(rows, setting, "anchor_shift", "calibrated").get("calmrl")
    if not before or not after:
        return []
    b, a = (float(np.mean(list(v.values()))) for v in (before, after))
    smaller = sum(after[seed] < before[seed] for seed in before)
    return [
        f"{setting}: imputing what test items lack moves their anchors from {b:.3f} to {a:.3f} away from those of the "
        f"complete items (calmrl; nearer in {smaller} of {len(before)} seeds)."
    ]
