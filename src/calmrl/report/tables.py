"""From tidy rows to a table: methods down, tasks and metrics across, intervals, ranks and tests."""

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from calmrl.errors import InputError
from calmrl.metrics.registry import describe, measures, names_of
from calmrl.metrics.significance import Interval, PairedDifference, against_best, mean_interval
from calmrl.report.results import skipped_sentence
from calmrl.report.style import base_method, is_ours

Row = Mapping[str, Any]
Key = tuple[str, str, str | None, Any]  # dataset, task, parameter and its value (None outside sweeps)

SURE = 0.05


@dataclass(frozen=True)
class Column:
    """A value is the mean over `keys` of one seed: one key, or all directions of an average."""

    group: str
    name: str
    metric: str
    keys: tuple[Key, ...]
    n: str = ""  # how many items, such as "157" or "153–157"

    @property
    def tested(self) -> bool:
        """Whether meta["tests"], paired bootstraps over test items, is about this column: the average R@1."""
        return self.metric == "R@1" and len(self.keys) > 1 and len({key[0] for key in self.keys}) == 1


@dataclass(frozen=True)
class ResultCell:
    interval: Interval
    n: str
    rank: int = 0  # 1 for the best, 2 for the second, 0 for all others
    mark: str = ""  # "*" better, "†" worse than the best baseline
    p: float | None = None


@dataclass(frozen=True)
class ResultLine:
    method: str
    kind: str  # "baseline", "ours" or "ideal"
    cells: tuple[ResultCell | str | None, ...]


@dataclass(frozen=True)
class ResultTable:
    """What `to_markdown`, `to_latex` and `to_csv` write. `blocks` are (title, lines), one per missing setting."""

    title: str
    columns: tuple[Column, ...]
    blocks: tuple[tuple[str, tuple[ResultLine, ...]], ...]
    notes: tuple[str, ...] = ()


@dataclass
class SettingBlock:
    """The rows of one setting: `cells[metric, key][method][seed]` is a value and the number of items behind it."""

    title: str
    cells: dict[tuple[str, Key], dict[str, dict[int, tuple[float, int]]]] = field(default_factory=dict)

    def of(self, column: Column) -> dict[str, dict[int, float]]:
        """method -> seed -> mean over the keys of the column that this block has at all; seeds that lack one are out."""
        parts = [self.cells[column.metric, key] for key in column.keys if (column.metric, key) in self.cells]
        averages: dict[str, dict[int, float]] = {}
        for method in dict.fromkeys(name for part in parts for name in part):
            seeds = set.intersection(*(set(part.get(method, ())) for part in parts))
            if seeds:
                averages[method] = {s: float(np.mean([part[method][s][0] for part in parts])) for s in sorted(seeds)}
        return averages

    def numbers(self, column: Column, method: str | None = None) -> set[int]:
        """The numbers of items behind a column, for one method or for all."""
        found = [self.cells.get((column.metric, key), {}).items() for key in column.keys]
        return {n for each in found for name, seeds in each if method in (None, name) for _, n in seeds.values()}


def span(numbers: Iterable[int]) -> str:
    """157, or 153–157 where they differ."""
    some = sorted(set(numbers))
    return "" if not some else str(some[0]) if len(some) == 1 else f"{some[0]}–{some[-1]}"


def key_of(row: Row) -> Key:
    return (str(row.get("dataset", "")), str(row["task"]), row.get("parameter"), row.get("at"))


def in_blocks(rows: Sequence[Row]) -> list[SettingBlock]:
    """One block per setting, in order of appearance; where a setting has several missing rates, one per rate."""
    rates: dict[str, set[Any]] = {}
    for row in rows:
        rates.setdefault(row.get("setting") or "", set()).add(row.get("rate"))
    blocks: dict[str, SettingBlock] = {}
    for row in rows:
        title = row.get("setting") or ""
        if len(rates[title]) > 1 and row.get("rate") is not None:
            title = ", ".join(filter(None, [title, f"{100 * row['rate']:g} % missing"]))
        block = blocks.setdefault(title, SettingBlock(title))
        method = str(row["method"])
        seeds = block.cells.setdefault((row["metric"], key_of(row)), {}).setdefault(method, {})
        if row["seed"] in seeds:
            raise InputError(
                f"two rows say {row['metric']} of {row['task']} for {method}, seed {row['seed']}, dataset "
                f"{row.get('dataset')!r}, setting {row.get('setting')!r}; tell them apart by their setting"
            )
        seeds[row["seed"]] = (float(row["value"]), int(row["n"]))
    return list(blocks.values())


def kinds(rows: Sequence[Row], meta: Mapping[str, Any] | None) -> dict[str, str]:
    """method -> "baseline", "ours" or "ideal": from meta["methods"], else by name. Baselines first, ideal last."""
    described = (meta or {}).get("methods", {})
    kinds_of = {}
    for method in dict.fromkeys(str(row["method"]) for row in rows):
        about = described.get(method, {"ours": is_ours(method), "ideal": base_method(method)[1] == "ideal"})
        kinds_of[method] = "ideal" if about.get("ideal") else "ours" if about.get("ours") else "baseline"
    order = ("baseline", "ours", "ideal")
    return dict(sorted(kinds_of.items(), key=lambda item: order.index(item[1])))


def build(
    title: str,
    rows: Sequence[Row],
    columns: Sequence[Column],
    meta: Mapping[str, Any] | None = None,
    *,
    rank_lines: bool = False,
) -> ResultTable:
    """Fill the columns. Best and second are marked in each column of a block, or along each line with `rank_lines`."""
    blocks = in_blocks(rows)
    roles = kinds(rows, meta)
    made = []
    for block in blocks:
        tests = [_tests(meta, block.title, column) for column in columns]
        of_columns = [
            _cells(block, column, roles, test, ranked=not rank_lines)
            for column, test in zip(columns, tests, strict=True)
        ]
        lines = [ResultLine(m, kind, tuple(cells.get(m) for cells in of_columns)) for m, kind in roles.items()]
        lines = [line for line in lines if any(line.cells)]
        if lines:
            made.append((block.title, tuple(_ranked_along(line, columns) if rank_lines else line for line in lines)))
    with_n = tuple(replace(c, n=span(n for block in blocks for n in block.numbers(c))) for c in columns)
    bootstrapped = bool((meta or {}).get("tests")) and any(column.tested for column in columns)
    return ResultTable(title, with_n, tuple(made), _notes(made, bootstrapped))


def _tests(meta: Mapping[str, Any] | None, setting: str, column: Column) -> Mapping[str, Any]:
    """The tests of a setting, or, where there are several data sets, of the column's data set in that setting."""
    every = (meta or {}).get("tests") or {}
    return every.get(setting) or every.get(f"{column.keys[0][0] if column.keys else ''}, {setting}") or {}


def _cells(
    block: SettingBlock, column: Column, roles: Mapping[str, str], tests: Mapping[str, Any], ranked: bool
) -> dict[str, ResultCell]:
    values = block.of(column)
    cells = {
        m: ResultCell(mean_interval(list(seeds.values())), span(block.numbers(column, m)))
        for m, seeds in values.items()
    }
    sign = describe(column.metric).sign
    if not sign or not ranked:
        return cells
    eligible = {m: seeds for m, seeds in values.items() if roles[m] != "ideal"}
    ranks = _ranks({m: sign * cells[m].interval.mean for m in eligible})
    baselines = [m for m in eligible if roles[m] == "baseline"]
    _, compared = against_best(eligible, baselines, higher=sign > 0)
    if column.tested and tests.get("against") in baselines:
        given = {method: PairedDifference(**one) for method, one in tests.get("methods", {}).items()}
        compared = {method: given.get(method, one) for method, one in compared.items()}
    for method, cell in cells.items():
        one = compared.get(method)
        sure = one is not None and one.p is not None and one.p < SURE
        mark = "" if one is None or not sure else "*" if sign * one.difference > 0 else "†"
        cells[method] = replace(cell, rank=ranks.get(method, 0), mark=mark, p=one.p if one else None)
    return cells


def _ranked_along(line: ResultLine, columns: Sequence[Column]) -> ResultLine:
    cells = {j: cell for j, cell in enumerate(line.cells) if isinstance(cell, ResultCell)}
    ranks = _ranks({j: (describe(columns[j].metric).sign or 1) * cell.interval.mean for j, cell in cells.items()})
    ranked = [replace(cells[j], rank=ranks[j]) if j in cells else cell for j, cell in enumerate(line.cells)]
    return replace(line, cells=tuple(ranked))


def _ranks(means: Mapping[Any, float]) -> dict[Any, int]:
    """1 for the largest, 2 for the next; equal ones share a place. No second and no best where there is no other."""
    if len(means) < 2:
        return dict.fromkeys(means, 0)
    levels = sorted({round(mean, 9) for mean in means.values()}, reverse=True)
    return {name: place if (place := 1 + levels.index(round(mean, 9))) <= 2 else 0 for name, mean in means.items()}


def _notes(blocks: Sequence[tuple[str, Sequence[ResultLine]]], bootstrapped: bool) -> tuple[str, ...]:
    lines = [line for _, some in blocks for line in some]
    cells = [cell for line in lines for cell in line.cells if isinstance(cell, ResultCell)]
    seeds = span(cell.interval.n for cell in cells)
    notes = []
    if cells:
        one = seeds == "1"
        notes.append("One seed, so no intervals." if one else f"Mean ± 95 % interval (Student) over {seeds} seeds.")
    if any(cell.rank for cell in cells):
        ideal = any(line.kind == "ideal" for line in lines)
        notes.append("Bold: best; underlined: second" + ("; ideal left aside." if ideal else "."))
    if any(cell.p is not None for cell in cells):
        notes.append(
            "* better, † worse than the best baseline of the column (paired t over seeds, p < 0.05 after Holm's "
            "correction over the methods compared with it"
            + ("; for the average R@1 a paired bootstrap over test items)." if bootstrapped else ").")
        )
    return tuple(notes)


TABLES = {  # group of METRICS -> (file, title); others are named after their group
    "imputation": ("imputation", "Imputation error"),
    "shift": ("anchor-shift", "Anchor shift and its bounds"),
    "geometry": ("geometry", "Modalities in the shared space"),
}
RERANKED = " re-ranked"
SWEPT = re.compile(r"(\S+) ([^\s=]+)=(.*)")  # method, parameter, value
Meta = Mapping[str, Any] | None


def retrieval_table(rows: Sequence[Row], meta: Meta = None, *, metrics: Sequence[str] = ("R@1",)) -> ResultTable:
    """Directions across, by dataset, and their average: tables 1, 3 (one block per setting), 5 (R@5) and 6 (R@10)."""
    some = _directed(rows, metrics)
    columns = _columns(some, metrics) + _averages(some, metrics)
    return _with_chance(build(f"Retrieval, {', '.join(metrics)}", some, columns, meta), rows, metrics)


def classification_table(
    rows: Sequence[Row], meta: Meta = None, *, metrics: Sequence[str] = ("accuracy",)
) -> ResultTable:
    """Ways to classify across, by dataset, and the average of those with nothing taken away: table 2."""
    some = _plain(rows, metrics, lambda task: task.startswith("classification "))
    whole = [row for row in some if " without " not in row["task"]]
    columns = _columns(some, metrics) + _averages(whole, metrics)
    return build(f"Classification, {', '.join(metrics)} (%)", some, columns, meta)


def average_table(rows: Sequence[Row], meta: Meta = None, *, metric: str = "R@1") -> ResultTable:
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


def generative_table(rows: Sequence[Row], *, metric: str = "R@1") -> ResultTable:
    """As `average_table`, of `calibrated` and of `calibrated:mvae` and the like, which differ in the imputer alone: table 7."""
    some = [row for row in rows if re.match(r"calibrated(:|$)", row["method"])]
    some = [{**row, "method": row["method"].removeprefix("calibrated:")} for row in some]
    table = average_table(some, {"methods": {"calibrated": {"ours": True}}}, metric=metric)
    return replace(table, title=f"Imputers inside calibrated training, {metric}, average over directions")


def ablation_table(rows: Sequence[Row], meta: Meta = None, *, metric: str = "R@1") -> ResultTable:
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


def sweep_tables(rows: Sequence[Row], meta: Meta = None, *, metric: str = "R@1") -> dict[str, ResultTable]:
    """parameter -> its values across, average metric over directions: table 8. Best and second along the line.

    Rows of a sweep have a method such as "pmrl objective.temperature=0.1".
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


def measure_table(rows: Sequence[Row], metrics: Sequence[str], title: str, meta: Meta = None) -> ResultTable:
    """Every task that has one of the metrics across: imputation errors, coverage, anchor shift, gap and uniformity."""
    some = _plain(rows, metrics, lambda task: True)
    return build(title, some, _columns(some, metrics), meta)


def dataset_table(meta: Meta) -> ResultTable:
    """Datasets down; modalities with their widths, rows and source across: table 4."""
    described = (meta or {}).get("datasets", {})
    names = list(dict.fromkeys(name for one in described.values() for name in one.get("modalities", {})))
    heads = [("modalities", name) for name in names] + [("", "rows"), ("", "source")]
    cells = {
        dataset: [*(one.get("modalities", {}).get(name) for name in names), one.get("rows"), one.get("source")]
        for dataset, one in described.items()
    }
    return _of_words("Datasets", heads, cells, ("Numbers under modalities are widths.",) if names else ())


def setting_table(meta: Meta) -> ResultTable:
    """Settings down; how complete their training rows are across."""
    shares = {"blocks missing (%)": "missing", "complete rows (%)": "complete", "pairs seen (%)": "pairs"}
    cells = {
        setting: [rows["rows"], *(f"{100 * rows[key]:.1f}" for key in shares.values()), rows["rarest"]]
        for setting, rows in (meta or {}).get("training", {}).items()
    }
    heads = [("", name) for name in ("training rows", *shares, "rarest pair")]
    note = "Rarest pair: how many rows have the two modalities that are together least often."
    return _of_words("Training rows", heads, cells, (note,))


def _of_words(
    title: str, heads: Sequence[tuple[str, str]], cells: Mapping[str, Sequence[Any]], notes: tuple[str, ...]
) -> ResultTable:
    """A table of cells that are no measurements; `heads` are the group and the name of each column."""
    lines = tuple(
        ResultLine(name, "baseline", tuple(None if cell is None else str(cell) for cell in line))
        for name, line in cells.items()
    )
    columns = tuple(Column(group, name, "", ()) for group, name in heads)
    return ResultTable(title, columns, (("", lines),) if lines else (), notes)


def all_tables(results: Mapping[str, Any]) -> dict[str, ResultTable]:
    """name -> table, for every table that `results` ({"rows", "meta"}) has something for."""
    rows, meta = results["rows"], results.get("meta") or {}
    ranked = [name for name in names_of("retrieval") if describe(name).sign]  # levels of chance are no result
    recalls = [name for name in ranked if describe(name).unit == "%"]
    made = {
        **{f"retrieval-{name.replace('@', '')}": retrieval_table(rows, meta, metrics=(name,)) for name in ranked},
        "retrieval-re-ranked": measure_table(_reranked(rows), recalls, "Retrieval before and after re-ranking", meta),
        "retrieval-average": average_table(rows, meta),
        "generative": generative_table(rows),
        "ablation": ablation_table(rows, meta),
    }
    for name in names_of("classification"):
        file = "classification" if name == "accuracy" else f"classification-{_file_name(name.removeprefix('macro-'))}"
        made[file] = classification_table(rows, meta, metrics=(name,))
    for start, file, title in (("mixed-pool", "mixed-pool", "Mixed pool"), ("fused", "fused", "Fused queries")):
        made[file] = measure_table([row for row in rows if row["task"].startswith(start)], recalls, title, meta)
    made["coverage"] = measure_table(
        rows, ["coverage"], "Percent of hidden entries inside intervals of that level", meta
    )
    others = [row for row in rows if row["metric"] != "coverage"]
    for group in measures():
        if group not in ("classification", "fused"):
            file, title = TABLES.get(group, (group, group))
            made[file] = measure_table(others, names_of(group), title, meta)
    made |= {f"sweep-{_file_name(name)}": table for name, table in sweep_tables(rows, meta).items()}
    made |= {"datasets": dataset_table(meta), "settings": setting_table(meta)}
    if len(made["ablation"].columns) < 2:
        del made["ablation"]  # no method comes in variants
    if not any(":" in row["method"] for row in rows):
        del made["generative"]  # no other imputer was tried
    sentence = skipped_sentence({name: one.get("left_out", {}) for name, one in meta.get("datasets", {}).items()})
    more = (sentence,) if sentence else ()
    return {
        name: replace(table, notes=(*table.notes, *more))
        for name, table in made.items()
        if table.columns and table.blocks
    }


def _with_chance(table: ResultTable, rows: Sequence[Row], metrics: Sequence[str]) -> ResultTable:
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


def _columns(rows: Sequence[Row], metrics: Sequence[str]) -> list[Column]:
    """A column for every task that has one of the metrics, by dataset."""
    there = {(row["metric"], key_of(row)) for row in rows}
    return [
        Column(key[0], key[1].removeprefix("classification ").replace("->", "→"), metric, (key,))
        for key in _by_dataset(rows)
        for metric in metrics
        if (metric, key) in there
    ]


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
