"""Which columns the paper's tables have. Every builder works on whatever part of the rows there is."""

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from calmrl.metrics.registry import describe, measures, names_of
from calmrl.report.left_out import left_out_sentence
from calmrl.report.paper_tables.table import Column, Key, PaperLine, PaperTable, Row, build, key_of

TABLES = {  # group of METRICS -> (file, title); others are named after their group
    "imputation": ("imputation", "Imputation error"),
    "shift": ("anchor-shift", "Anchor shift and its bounds"),
    "geometry": ("geometry", "Modalities in the shared space"),
}
RERANKED = " re-ranked"
SWEPT = re.compile(r"(\S+) ([^\s=]+)=(.*)")  # method, parameter, value
Meta = Mapping[str, Any] | None


def retrieval_table(rows: Sequence[Row], meta: Meta = None, *, metrics: Sequence[str] = ("R@1",)) -> PaperTable:
    """Directions across, by dataset, and their average: tables 1, 3 (one block per setting), 5 (R@5) and 6 (R@10)."""
    some = _directed(rows, metrics)
    columns = [
        Column(key[0], key[1].replace("->", "→"), metric, (key,)) for key in _by_dataset(some) for metric in metrics
    ]
    table = build(f"Retrieval, {', '.join(metrics)}", some, columns + _averages(some, metrics), meta)
    return _with_chance(table, rows, metrics)


def classification_table(
    rows: Sequence[Row], meta: Meta = None, *, metrics: Sequence[str] = ("accuracy",)
) -> PaperTable:
    """Ways to classify across, by dataset, and the average of those with nothing taken away: table 2."""
    some = _plain(rows, metrics, lambda task: task.startswith("classification "))
    columns = [
        Column(key[0], key[1].removeprefix("classification "), metric, (key,))
        for key in _by_dataset(some)
        for metric in metrics
    ]
    whole = [row for row in some if " without " not in row["task"]]
    return build(f"Classification, {', '.join(metrics)} (%)", some, columns + _averages(whole, metrics), meta)


def average_table(rows: Sequence[Row], meta: Meta = None, *, metric: str = "R@1") -> PaperTable:
    """One column per dataset, the average over its directions, and the average of all: the short form of table 1."""
    some = _directed(rows, (metric,))
    keys = _by_dataset(some)
    columns = [
        Column(dataset, "", metric, tuple(key for key in keys if key[0] == dataset))
        for dataset in dict.fromkeys(key[0] for key in keys)
    ]
    everything = _averages(some, (metric,)) if len(columns) > 1 else []
    table = build(f"Retrieval, {metric}, average over directions", some, columns + everything, meta)
    return _with_chance(table, rows, (metric,))


def generative_table(rows: Sequence[Row], *, metric: str = "R@1") -> PaperTable:
    """As `average_table`, of `calibrated` and of `calibrated:mvae` and the like, which differ in the imputer alone: table 7."""
    some = [row for row in rows if re.match(r"calibrated(:|$)", row["method"])]
    some = [{**row, "method": row["method"].removeprefix("calibrated:")} for row in some]
    table = average_table(some, {"methods": {"calibrated": {"ours": True}}}, metric=metric)
    return replace(table, title=f"Imputers inside calibrated training, {metric}, average over directions")


def ablation_table(rows: Sequence[Row], meta: Meta = None, *, metric: str = "R@1") -> PaperTable:
    """Objectives down, ways to start and train across (what follows the first "+" of a method), average metric."""
    some = []
    for row in _directed(rows, (metric,)):
        base, _, variant = row["method"].partition("+")
        some.append({**row, "method": base, "parameter": "variant", "at": variant})
    keys = _by_dataset(some)
    columns = [
        Column("", f"+ {variant}" if variant else "alone", metric, tuple(key for key in keys if key[3] == variant))
        for variant in dict.fromkeys(key[3] for key in keys)
    ]
    untested = {**(meta or {}), "tests": {}}  # those are about whole names of methods
    return build(f"Objectives and how they are started and trained, average {metric}", some, columns, untested)


def sweep_tables(rows: Sequence[Row], meta: Meta = None, *, metric: str = "R@1") -> dict[str, PaperTable]:
    """parameter -> its values across, average metric over directions: table 8. Best and second along the line.

    Rows of a sweep have a method such as "calmrl objective.temperature=0.1".
    """
    swept = []
    for row in rows:
        match = SWEPT.fullmatch(row["method"])
        if match and row["metric"] == metric and _is_direction(row["task"]):
            method, parameter, at = match.groups()
            swept.append({**row, "method": method, "parameter": parameter, "at": at})
    tables = {}
    for parameter in dict.fromkeys(row["parameter"] for row in swept):
        some = [row for row in swept if row["parameter"] == parameter]
        keys = _by_dataset(some)
        columns = [
            Column(parameter, at, metric, tuple(key for key in keys if key[3] == at))
            for at in sorted({key[3] for key in keys}, key=_order)
        ]
        title = f"Average {metric} over values of {parameter}"
        tables[parameter] = build(title, some, columns, meta, rank_lines=True)
    return tables


def measure_table(rows: Sequence[Row], metrics: Sequence[str], title: str, meta: Meta = None) -> PaperTable:
    """Every task that has one of the metrics across: imputation errors, coverage, anchor shift, gap and uniformity."""
    some = _plain(rows, metrics, lambda task: True)
    there = {(row["metric"], key_of(row)) for row in some}
    columns = [
        Column(key[0], key[1].replace("->", "→"), metric, (key,))
        for key in _by_dataset(some)
        for metric in metrics
        if (metric, key) in there
    ]
    return build(title, some, columns, meta)


def dataset_table(meta: Meta) -> PaperTable:
    """Datasets down; modalities with their widths, rows and source across: table 4."""
    described = (meta or {}).get("datasets", {})
    names = list(dict.fromkeys(name for one in described.values() for name in one.get("modalities", {})))
    columns = [Column("modalities", name, "", ()) for name in names] + [
        Column("", c, "", ()) for c in ("rows", "source")
    ]
    lines = []
    for dataset, one in described.items():
        widths = [one.get("modalities", {}).get(name) for name in names]
        cells = [*widths, one.get("rows"), one.get("source")]
        lines.append(PaperLine(dataset, "baseline", tuple(None if cell is None else str(cell) for cell in cells)))
    notes = ("Numbers under modalities are widths.",) if names else ()
    return PaperTable("Datasets", tuple(columns), (("", tuple(lines)),) if lines else (), notes)


def all_tables(results: Mapping[str, Any]) -> dict[str, PaperTable]:
    """name -> table, for every table that `results` ({"rows", "meta"}) has something for."""
    rows, meta = results["rows"], results.get("meta") or {}
    ranked = [name for name in names_of("retrieval") if describe(name).sign]  # levels of chance are no result
    recalls = [name for name in ranked if describe(name).unit == "%"]
    pools = [row for row in rows if row["task"].startswith("mixed-pool")]
    made = {
        **{f"retrieval-{name.replace('@', '')}": retrieval_table(rows, meta, metrics=(name,)) for name in ranked},
        "retrieval-re-ranked": measure_table(_reranked(rows), recalls, "Retrieval before and after re-ranking", meta),
        "retrieval-average": average_table(rows, meta),
        "generative": generative_table(rows),
        "ablation": ablation_table(rows, meta),
        **{
            "classification" if name == "accuracy" else f"classification-{_file_name(name.removeprefix('macro-'))}": (
                classification_table(rows, meta, metrics=(name,))
            )
            for name in names_of("classification")
        },
        "mixed-pool": measure_table(pools, recalls, "Mixed pool", meta),
        "coverage": measure_table(rows, ["coverage"], "Percent of hidden entries inside intervals of that level", meta),
        **{
            name: measure_table([row for row in rows if row["metric"] != "coverage"], names_of(group), title, meta)
            for group in measures()
            if group != "classification"
            for name, title in [TABLES.get(group, (group, group))]
        },
        **{f"sweep-{_file_name(name)}": table for name, table in sweep_tables(rows, meta).items()},
        "datasets": dataset_table(meta),
    }
    if len(made["ablation"].columns) < 2:
        del made["ablation"]  # no method comes in variants
    if not any(":" in row["method"] for row in rows):
        del made["generative"]  # no other imputer was tried
    sentence = left_out_sentence({name: one.get("left_out", {}) for name, one in meta.get("datasets", {}).items()})
    more = (sentence,) if sentence else ()
    return {
        name: replace(table, notes=(*table.notes, *more))
        for name, table in made.items()
        if table.columns and table.blocks
    }


def _with_chance(table: PaperTable, rows: Sequence[Row], metrics: Sequence[str]) -> PaperTable:
    """The table with a note on what a random order reaches in its directions, by data set."""
    notes = []
    for metric in metrics:
        levels: dict[str, list[float]] = {}
        for row in _directed(rows, (f"chance {metric}",)):
            levels.setdefault(str(row.get("dataset", "")), []).append(float(row["value"]))
        listed = [f"{name} {_range(some)}" for name, some in levels.items()]
        notes += [f"{metric} of a random order (%): {', '.join(listed)}."] if listed else []
    return replace(table, notes=(*table.notes, *notes))


def _range(values: Sequence[float]) -> str:
    """0.4, or 0.4 to 0.6 where they differ."""
    low, high = f"{min(values):.1f}", f"{max(values):.1f}"
    return low if low == high else f"{low} to {high}"


def _is_direction(task: str) -> bool:
    """text->image: one source and one target, not all the others together."""
    return bool(re.fullmatch(r"[^,>]+->[^,> ]+", task)) and not task.endswith("->all")


def _directed(rows: Sequence[Row], metrics: Sequence[str]) -> list[Row]:
    """Rows of single directions; where there are none, those of their average."""
    return _plain(rows, metrics, _is_direction) or _plain(rows, metrics, lambda task: task == "average")


def _plain(rows: Sequence[Row], metrics: Sequence[str], wanted: Callable[[str], bool]) -> list[Row]:
    """Rows outside sweeps with these metrics and tasks."""
    return [r for r in rows if r["metric"] in metrics and not SWEPT.fullmatch(r["method"]) and wanted(r["task"])]


def _reranked(rows: Sequence[Row]) -> list[Row]:
    """Rows of tasks that were re-ranked, before and after."""
    both = {row["task"] for row in rows if row["task"].endswith(RERANKED)}
    return [row for row in rows if row["task"].removesuffix(RERANKED) + RERANKED in both]


def _by_dataset(rows: Sequence[Row]) -> list[Key]:
    """The keys, those of a dataset side by side, else in order of appearance."""
    keys = list(dict.fromkeys(key_of(row) for row in rows))
    datasets = list(dict.fromkeys(key[0] for key in keys))
    return sorted(keys, key=lambda key: datasets.index(key[0]))


def _averages(rows: Sequence[Row], metrics: Sequence[str]) -> list[Column]:
    keys = tuple(_by_dataset(rows))
    return [Column("", "Avg.", metric, keys) for metric in metrics] if len(keys) > 1 else []


def _order(value: str) -> tuple[bool, float, str]:
    """Numbers first, by size; then words."""
    try:
        return (False, float(value), value)
    except ValueError:
        return (True, 0.0, value)


def _file_name(name: str) -> str:
    return re.sub(r"[^\w.-]+", "_", name)
