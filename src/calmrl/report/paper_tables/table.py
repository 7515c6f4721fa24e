"""From tidy rows to a table: methods down, tasks and metrics across, intervals, ranks and tests."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from calmrl.errors import InputError
from calmrl.metrics.registry import describe
from calmrl.metrics.significance import Interval, PairedDifference, against_best, mean_interval
from calmrl.report.look import family, is_ours

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
class PaperCell:
    interval: Interval
    n: str
    rank: int = 0  # 1 for the best, 2 for the second, 0 for all others
    mark: str = ""  # "*" better, "†" worse than the best baseline
    p: float | None = None


@dataclass(frozen=True)
class PaperLine:
    method: str
    kind: str  # "baseline", "ours" or "ideal"
    cells: tuple[PaperCell | str | None, ...]


@dataclass(frozen=True)
class PaperTable:
    """What `to_markdown`, `to_latex` and `to_csv` write. `blocks` are (title, lines), one per missing setting."""

    title: str
    columns: tuple[Column, ...]
    blocks: tuple[tuple[str, tuple[PaperLine, ...]], ...]
    notes: tuple[str, ...] = ()


@dataclass
class SettingBlock:
    """The rows of one setting: values[metric, key][method][seed], and the numbers of items behind them."""

    title: str
    values: dict[tuple[str, Key], dict[str, dict[int, float]]] = field(default_factory=dict)
    items: dict[tuple[str, Key], dict[str, set[int]]] = field(default_factory=dict)

    def of(self, column: Column) -> dict[str, dict[int, float]]:
        """method -> seed -> mean over the keys of the column that this block has at all; seeds that lack one are out."""
        parts = [self.values[column.metric, key] for key in column.keys if (column.metric, key) in self.values]
        averages: dict[str, dict[int, float]] = {}
        for method in dict.fromkeys(name for part in parts for name in part):
            if all(method in part for part in parts):
                seeds = set.intersection(*(set(part[method]) for part in parts))
                if seeds:
                    averages[method] = {s: float(np.mean([part[method][s] for part in parts])) for s in sorted(seeds)}
        return averages

    def numbers(self, column: Column, method: str | None = None) -> set[int]:
        """The numbers of items behind a column, for one method or for all."""
        counts: set[int] = set()
        for key in column.keys:
            for name, some in self.items.get((column.metric, key), {}).items():
                counts |= some if method in (None, name) else set()
        return counts


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
        at, method = (row["metric"], key_of(row)), str(row["method"])
        seeds = block.values.setdefault(at, {}).setdefault(method, {})
        if row["seed"] in seeds:
            raise InputError(
                f"two rows say {row['metric']} of {row['task']} for {method}, seed {row['seed']}, dataset "
                f"{row.get('dataset')!r}, setting {row.get('setting')!r}; tell them apart by their setting"
            )
        seeds[row["seed"]] = float(row["value"])
        block.items.setdefault(at, {}).setdefault(method, set()).add(int(row["n"]))
    return list(blocks.values())


def kinds(rows: Sequence[Row], meta: Mapping[str, Any] | None) -> dict[str, str]:
    """method -> "baseline", "ours" or "ideal": from meta["methods"], else by name. Baselines first, ideal last."""
    described = (meta or {}).get("methods", {})
    kinds_of = {}
    for method in dict.fromkeys(str(row["method"]) for row in rows):
        about = described.get(method, {"ours": is_ours(method), "ideal": family(method)[1] == "ideal"})
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
) -> PaperTable:
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
        lines = [PaperLine(m, kind, tuple(cells.get(m) for cells in of_columns)) for m, kind in roles.items()]
        lines = [line for line in lines if any(line.cells)]
        if lines:
            made.append((block.title, tuple(_ranked_along(line, columns) if rank_lines else line for line in lines)))
    with_n = tuple(replace(c, n=span(n for block in blocks for n in block.numbers(c))) for c in columns)
    bootstrapped = bool((meta or {}).get("tests")) and any(column.tested for column in columns)
    return PaperTable(title, with_n, tuple(made), _notes(made, bootstrapped))


def _tests(meta: Mapping[str, Any] | None, setting: str, column: Column) -> Mapping[str, Any]:
    """The tests of a setting, or, where there are several data sets, of the column's data set in that setting."""
    every = (meta or {}).get("tests") or {}
    return every.get(setting) or every.get(f"{column.keys[0][0] if column.keys else ''}, {setting}") or {}


def _cells(
    block: SettingBlock, column: Column, roles: Mapping[str, str], tests: Mapping[str, Any], ranked: bool
) -> dict[str, PaperCell]:
    values = block.of(column)
    cells = {
        m: PaperCell(mean_interval(list(seeds.values())), span(block.numbers(column, m))) for m, seeds in values.items()
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


def _ranked_along(line: PaperLine, columns: Sequence[Column]) -> PaperLine:
    cells = {j: cell for j, cell in enumerate(line.cells) if isinstance(cell, PaperCell)}
    ranks = _ranks({j: (describe(columns[j].metric).sign or 1) * cell.interval.mean for j, cell in cells.items()})
    ranked = [replace(cells[j], rank=ranks[j]) if j in cells else cell for j, cell in enumerate(line.cells)]
    return replace(line, cells=tuple(ranked))


def _ranks(means: Mapping[Any, float]) -> dict[Any, int]:
    """1 for the largest, 2 for the next; equal ones share a place. No second and no best where there is no other."""
    if len(means) < 2:
        return dict.fromkeys(means, 0)
    levels = sorted({round(mean, 9) for mean in means.values()}, reverse=True)
    return {name: place if (place := 1 + levels.index(round(mean, 9))) <= 2 else 0 for name, mean in means.items()}


def _notes(blocks: Sequence[tuple[str, Sequence[PaperLine]]], bootstrapped: bool) -> tuple[str, ...]:
    lines = [line for _, some in blocks for line in some]
    cells = [cell for line in lines for cell in line.cells if isinstance(cell, PaperCell)]
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
