"""`calmrl compare`: all methods on one's own data, under one budget; and `calmrl demo`, which does it on bundled data."""

from __future__ import annotations

import shlex
import shutil
import textwrap
from collections.abc import Callable, Mapping, Sequence
from enum import Enum
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from calmrl._support.text import plural
from calmrl.cli.printing import Progress, below_table, data, note, stderr_console
from calmrl.cli.shared_options import Overrides, config_names, method_list

if TYPE_CHECKING:
    from calmrl.config import CompareConfig
    from calmrl.report import Results
    from calmrl.workflows import Comparison
    from calmrl.workflows.demo import DemoSearch, Searched


class Keep(str, Enum):
    """Which models stay."""

    best = "best"


def compare(
    config: Annotated[
        str,
        typer.Argument(
            help="A config file, a shipped config of kind compare, or features, compared as they are.",
            autocompletion=config_names,
        ),
    ],
    out: Annotated[Path, typer.Option("--out", help="The directory to write; a run that was stopped continues there.")],
    overrides: Overrides = None,
    methods: Annotated[
        str | None,
        typer.Option("--methods", help="Comma-separated. [default: those of the config]", autocompletion=method_list),
    ] = None,
    seeds: Annotated[int | None, typer.Option("--seeds", min=1, help="Number of seeds, starting at 0.")] = None,
    relevant_by: Annotated[
        str | None,
        typer.Option("--relevant-by", help="A found item counts if it has the query's id, text, labels or COLUMN."),
    ] = None,
    keep: Annotated[Keep | None, typer.Option("--keep", help="Keep the model of the best row.")] = None,
    json: Annotated[bool, typer.Option("--json", help="Print results.json to stdout.")] = False,
) -> None:
    """Compare methods on the same rows with the same budget.

    Same rows, same steps, same number of trials, chosen on validation rows.

    Example:
      calmrl compare demo --methods aligner,pmrl --seeds 3 --out runs/two
      calmrl compare features --out runs/mine
      calmrl compare features --relevant-by labels --keep best --out runs/mine
      calmrl compare my.yaml --out runs/mine workers=8
    """
    import shlex

    from calmrl.config import CompareConfig, load

    changes = list(overrides or [])
    if methods is not None:
        changes.append(f"methods=[{methods}]")
    if seeds is not None:
        changes.append(f"seeds={list(range(seeds))}")
    if relevant_by is not None:
        changes.append(f"relevant_by={relevant_by}")
    if _is_features(config):
        from calmrl.workflows.compare.plan import config_for

        resolved = config_for(config, changes)
    else:
        loaded = load(config, changes, kind="compare")
        assert isinstance(loaded, CompareConfig)
        resolved = loaded
    words = ["calmrl", "compare", config, *changes, *(["--keep", keep.value] if keep else []), "--out", str(out)]
    compare_and_show(resolved, out, shlex.join(words), keep=keep.value if keep else None, json=json)


def _is_features(name: str) -> bool:
    """Whether it is a path to features, and not a config."""
    path = Path(name)
    return path.exists() and path.suffix not in (".yaml", ".yml")


WIDTH = 80  # columns of a screen

COMMANDS = 3  # that train a best row, shown at most

SHARES = {"blocks missing": "missing", "complete rows": "complete", "pairs seen": "pairs"}  # of the training rows

METHOD, CELL = 22, 14  # of them, for the names of methods and for each data set and setting


def compare_and_show(
    config: CompareConfig,
    out: Path,
    command: str,
    *,
    keep: Literal["best"] | None = None,
    json: bool = False,
    extra_jobs: Mapping[str, Callable[[], Any]] | None = None,
) -> Comparison:
    """Compare with a progress bar, then print one table over all data sets and settings, and what it means."""
    from calmrl.metrics.registry import describe
    from calmrl.workflows import compare

    with Progress() as bar:
        comparison = compare(
            config,
            out,
            command=command,
            keep=keep,
            extra_jobs=extra_jobs,
            progress=lambda done, total, text: bar(done, total, text or "the first jobs"),
        )
    for metric in config.table:
        note(f"\n{describe(metric).axis}, average over all directions; {_spread(config)}")
        for table in tables(comparison.results, metric):
            stderr_console().print(table, width=WIDTH)
            below_table(comparison.results.left_out)
    for sentence in (*comparison.notes, *comparison.words):
        note(textwrap.fill(sentence, WIDTH))
    _next_steps(comparison, out)
    if json:
        data((out / "results.json").read_text(encoding="utf-8"))
    else:
        data(str(out / "results.json"))
    return comparison


def _spread(config: CompareConfig) -> str:
    """What stands behind a mean."""
    return f"± 95 % over {len(config.seeds)} seeds" if len(config.seeds) > 1 else "one seed, so no spread"


def _next_steps(comparison: Comparison, out: Path) -> None:
    for folder in comparison.models:
        note(f'calmrl.load("{folder}") opens the model of a best row')
    shown = comparison.best[:COMMANDS]
    if shown:
        note("\nto train the best row on all rows, nothing hidden:")
    for row in shown:
        note(_folded(f"  {row.command}"))
    if len(comparison.best) > len(shown):
        note(f"  ... and {len(comparison.best) - len(shown)} more, for the configs in {out / 'train'}")
    text = f"open {out / 'report.html'} to see it; tables for a paper are in {out / 'tables'}; the numbers are in:"
    note("\n" + textwrap.fill(text, WIDTH, break_long_words=False, break_on_hyphens=False))


def _folded(command: str) -> str:
    """The same command on two lines, as a shell reads it, where it is too long for one."""
    return command if len(command) <= WIDTH else command.replace(" --out ", " \\\n    --out ", 1)


def tables(results: Results, metric: str = "R@1") -> list[Any]:
    """Methods down, data sets and settings across: mean ± 95 % interval over seeds; as many tables as the width needs."""
    rows = [row for row in results.rows if (row.task, row.metric) == ("average", metric)]
    places = results.places(rows)
    step = (WIDTH - METHOD) // CELL
    return [_table(results, rows, places[start : start + step], metric) for start in range(0, len(places), step)]


def _table(results: Results, rows: Sequence[Any], places: Sequence[tuple[str, str]], metric: str) -> Any:
    from calmrl._support.text import Heading, Table, to_terminal
    from calmrl.report.results import group

    means = group([row for row in rows if row.place in places], lambda row: (row.method, row.place))
    from calmrl.metrics.registry import describe

    sign, chances = describe(metric).sign, results.chances(metric)
    one = len({dataset for dataset, _ in results.places(results.rows)}) == 1
    head: list[str | Heading] = ["method"]
    for place in places:
        queries = next(mean.items for (_, where), mean in means.items() if where == place)
        head.append(Heading(place[1] if one else "\n".join(place), f"n = {queries}"))

    def order(method: str) -> tuple[bool, float]:
        return results.ideal(method), -sign * sum(means[method, p].mean for p in places if (method, p) in means)

    lines = []
    for method in sorted(dict.fromkeys(method for method, _ in means), key=order):
        cells = [means.get((method, place)) for place in places]
        lines.append([method, *("–" if cell is None else cell.text(1) for cell in cells)])
    levels = [chances.get((place, "average")) for place in places]
    apart = [["by chance", *("" if level is None else f"{level:.1f}" for level in levels)]] if chances else []
    training = [results.training.get(results.place_name(place)) for place in places]
    if any(training):
        for share, field in SHARES.items():
            apart.append([share, *("" if one is None else f"{100 * getattr(one, field):.1f} %" for one in training)])
    return to_terminal(Table("", head, lines, apart), edge=True, name_width=METHOD - 2, width=CELL - 3)


INDEXES = "the indexes of emoji and stamps"  # as the progress line has them


def demo(
    out: Annotated[Path, typer.Option("--out", help="The directory to write; a run that was stopped continues there.")],
    overrides: Overrides = None,
    config: Annotated[str, typer.Option("--config", help="A config file or a shipped config.")] = "demo",
    force: Annotated[bool, typer.Option("--force", help="Begin anew: remove an earlier output of calmrl.")] = False,
) -> None:
    """Compare methods on real data with holes, then search it.

    Seven methods on two bundled collections with missing modalities; both are then searched by words and sounds.

    Example:
      calmrl demo --out demo-out
      calmrl demo --out quick 'seeds=[0]' 'methods=[pmrl, aligner]' steps=50
    """
    from calmrl._support.output import check_directory, check_free
    from calmrl.config import CompareConfig, load

    resolved = load(config, overrides or [], kind="compare")
    assert isinstance(resolved, CompareConfig)
    if force and out.exists():
        check_free(out, force=True)
        shutil.rmtree(out)
    check_directory(out)
    from calmrl.workflows.demo import search_both

    emoji, stamps = out / "emoji.index", out / "stamps.index"
    note("1. Methods compared on rows that lack modalities: about a minute")
    trials, steps = plural(resolved.trials, "trial"), plural(resolved.steps, "step")
    note(f"every method has {trials} of at most {steps}, chosen on validation rows")
    comparison = compare_and_show(
        resolved,
        out,
        shlex.join(["calmrl", "demo", "--out", str(out), *(overrides or [])]),
        extra_jobs={INDEXES: partial(search_both, emoji, stamps)},
    )
    _show_searches(comparison.extra_jobs[INDEXES], emoji)


def _show_searches(found: tuple[Searched, Searched] | str, path: Path) -> None:
    """What some queries find; without the extra `search`, what is missing."""
    note("\n2. Search: emoji by words, although the words of 70 % of them were hidden")
    if isinstance(found, str):
        note(f"skipped: {found}")
        return
    emoji, stamps = found
    _show_expected(emoji)
    _show_hits(emoji.searches)
    note(f"\n3. Search: {stamps.items} stamps by a sound; pictures of other stamps")
    _show_hits(stamps.searches)
    index = shlex.quote(str(path))
    note(f'\nsearch it yourself: calmrl search {index} "weather"')
    note(f"or in a browser:    calmrl serve {index}")


def _show_hits(searches: list[DemoSearch]) -> None:
    for search in searches:
        names = ", ".join((hit.text or hit.id).rstrip(".") for hit in search.hits)
        note(textwrap.fill(f"{search.query}: {names}", 80, initial_indent="  ", subsequent_indent="    "))


def _show_expected(index: Searched) -> None:
    """What the aligner expects of new items."""
    expected = index.expected["text->image"]
    text = (
        f"{index.items:,} items. Expected for a new item: its name finds its picture first in {expected['R@1']:.0f} %, among "
        f"the first ten in {expected['R@10']:.0f} % of {expected['n']} pictures. Nearest pictures without words:"
    )
    note(textwrap.fill(text, 80))
