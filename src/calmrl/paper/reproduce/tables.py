"""What a table or figure of the paper holds: cells with a published number, and where ours comes from."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from pathlib import Path
from typing import TYPE_CHECKING, Any

from calmrl._support.registry import Registry

if TYPE_CHECKING:
    from calmrl.config import TrainConfig

COUNTS = "counts"  # the producer of numbers of items
OTHERS = {
    "ImageBind": "imagebind",
    "InternVideo-L": "internvideo",
    "LanguageBind": "languagebind",
}  # -> folder of features/


@dataclass(frozen=True)
class Value:
    """One of our measurements; task and metric as in results.json."""

    producer: str  # a run of RUNS, a folder of OTHERS, or COUNTS
    collection: str  # what it is measured on; "" for the training of a run itself
    task: str
    metric: str


@dataclass(frozen=True)
class Cell:
    """A number of the paper, None where none is printed, and the values whose mean is ours."""

    row: str
    column: str
    published: float | None
    values: tuple[Value, ...]


@dataclass(frozen=True)
class PaperTable:
    """A table or figure, row by row."""

    name: str  # table1, figure3, ..., by order of appearance
    title: str
    cells: tuple[Cell, ...]
    decimals: int = 1
    notes: tuple[str, ...] = ()  # what must be known to compare

    @property
    def values(self) -> list[Value]:
        """All measurements behind the cells, each once."""
        return list(dict.fromkeys(value for cell in self.cells for value in cell.values))

    @property
    def producers(self) -> list[str]:
        """Who makes them, in order of appearance."""
        return list(dict.fromkeys(value.producer for value in self.values))


@dataclass(frozen=True)
class PublishedTable:
    """The numbers of a table as printed."""

    title: str
    columns: tuple[str, ...]
    rows: Mapping[str, Sequence[float | None]]

    def number(self, row: str, column: str) -> float | None:
        """A printed number; None where the paper prints a dash."""
        return self.rows[row][self.columns.index(column)]


@cache
def published(name: str) -> PublishedTable:
    """The numbers of one table of the paper."""
    import yaml  # here, for a list of the tables does without the numbers

    text = (files("calmrl.paper.reproduce") / "published.yaml").read_text(encoding="utf-8")
    table: dict[str, Any] = yaml.safe_load(text)[name]
    return PublishedTable(table["title"], tuple(table["columns"]), table["rows"])


RETRIEVAL, CLASSIFICATION = "paper-vast", "paper-classification"
WARM_UP = "vast150k"
IMAGEBIND = "features/imagebind"
LEARNT = {"anchor": "text", "temperature": 0.07, "learn_temperature": True, "label_smoothing": 0.1}  # as in their code
PRINTED = {"name": "pmrl", "temperature": 0.05, "anchor_temperature": 0.1}
OBJECTIVES = {
    "vast": {"name": "vast", **{key: value for key, value in LEARNT.items() if key != "anchor"}},
    "gram": {"name": "gram", **LEARNT},
    "triangle": {"name": "triangle", **LEARNT},
    "pmrl": PRINTED,
    "calmrl": PRINTED,
}
PAIRS = {"both": ("msrvtt", "audiocaps"), "at": ("audiocaps",), "vt": ("msrvtt",)}
GENERATIVE = ("mvae", "mopoe", "smil", "knowledge_bridger")
SWEPT = {"tau": "objective.temperature", "tau2": "objective.anchor_temperature", "alpha": "matching_weight"}
SWEEPS = {"tau": (0.05, 0.1, 0.2, 1.0), "tau2": (0.05, 0.1, 0.2, 1.0), "alpha": (0.0, 0.1, 0.5, 1.0)}
OWN = {"tau": 0.05, "tau2": 0.1, "alpha": 0.1}  # of the run that all others are compared with


@dataclass(frozen=True)
class Run:
    """One training."""

    name: str  # also that of its folder
    method: str  # a key of OBJECTIVES
    pairs: tuple[str, ...] | None  # collections of the second stage; () without that stage, None without any step
    config: str = RETRIEVAL  # the shipped config that it changes
    audio: bool = False  # whether the videos of the second stage keep their audio: complete modalities
    changes: tuple[str, ...] = ()  # key=value

    @property
    def collections(self) -> tuple[str, ...]:
        """The public collections that it trains on."""
        if self.config == CLASSIFICATION or self.pairs is None:
            return ()
        return (WARM_UP, *self.pairs)


def swept_name(parameter: str, value: float) -> str:
    """The run of a value of τ, τ′ or α."""
    return "calmrl-both" if value == OWN[parameter] else f"calmrl-both-{parameter}-{value:g}"


def _all() -> list[Run]:
    runs = [Run("vast-start", "vast", None)]
    runs += [Run(f"{method}-complete", method, ()) for method in ("gram", "triangle", "pmrl")]
    runs += [Run(f"{method}-{name}", method, pairs) for name, pairs in PAIRS.items() for method in OBJECTIVES]
    runs += [Run("pmrl-ideal", "pmrl", ("msrvtt",), audio=True)]
    runs += [
        Run(f"calmrl-both-{name}", "calmrl", PAIRS["both"], changes=(f"calibration.imputer={{method: {name}}}",))
        for name in GENERATIVE
    ]
    runs += [
        Run(swept_name(name, value), "calmrl", PAIRS["both"], changes=(f"{SWEPT[name]}={value}",))
        for name, values in SWEEPS.items()
        for value in values
        if value != OWN[name]
    ]
    runs += [Run(f"{method}-classes", method, ("vggsound", "ucf101"), CLASSIFICATION) for method in OBJECTIVES]
    return runs


RUNS = {run.name: run for run in _all()}


def config_of(run: Run, root: Path, changes: Sequence[str] = ()) -> TrainConfig:
    """The training config of a run on the data in `root`; `changes` are key=value and come last."""
    from calmrl.config import TrainConfig, load
    from calmrl.config.loading import load_values

    shipped = load(run.config, kind="train")
    values = shipped.model_dump(mode="json")
    values |= {"objective": dict(OBJECTIVES[run.method]), "root": str(root)}
    if run.method == "calmrl":
        values["method"] = "calmrl-printed"
    else:
        values |= {"method": run.method, "calibration": None}
    if run.config == RETRIEVAL:
        values["fused_weight"] = 1.0 if run.method == "vast" else 0.0
        values["sources"] = {name: media_source(name, run) for name in (run.collections or (WARM_UP,))}
    else:
        values["root"] = str(root / IMAGEBIND)
    values["stages"] = _stages(values["stages"], run)
    values["validation"] |= {"every": 0}
    config = load_values(values, [*run.changes, *changes], name=run.name)
    assert isinstance(config, TrainConfig)
    return config


def media_source(name: str, run: Run | None = None) -> dict[str, Any]:
    """The source of a public collection in its own folder; without a run, to be tested with all that it has.

    Pairs train without the audio of videos.
    """
    collection: dict[str, Any] = {"name": name, "root": name}
    if run is not None and name == "msrvtt" and not run.audio:
        collection["media"] = {"vision": name}
    return {"collection": collection, "allow_missing": True}


def _stages(shipped: list[dict[str, Any]], run: Run) -> list[dict[str, Any]]:
    """Those of the shipped config that the run has; the model at the end counts, and only calmrl hides modalities."""
    first, second = shipped
    if run.pairs is None:
        return []
    first = first | {"hide_one": run.method == "calmrl"}
    second = second | {"sources": list(run.pairs), "fresh_best": True}
    return [first, second] if run.pairs else [first]


RETRIEVED = {  # as printed -> name of the collection
    "MSR-VTT": "msrvtt",
    "MSRVTT": "msrvtt",
    "DiDeMo": "didemo",
    "ActivityNet": "activitynet",
    "VATEX": "vatex",
    "AudioCaps": "audiocaps",
    "Clotho": "clotho",
}
CLASSIFIED = {  # as printed -> name of the collection, and the modality that is classified by the names of the classes
    "VGGSound": ("vggsound", "audio"),
    "UCF101": ("ucf101", "vision"),
    "AudioSet": ("audioset", "audio"),
    "ESC50": ("esc50", "audio"),
}
AVERAGE = "Avg."
BY_ALL, FROM_ALL = "text->all re-ranked", "all->text re-ranked"
LETTERS = {"T": "text", "V": "vision", "A": "audio"}
RERANKED = (
    "Ours: every caption against every test item with all that it has, the best 50 ranked again by the matching head."
)


def run_of(row: str) -> str:
    """The run of a printed row: VAST↑AT -> vast-at."""
    method, arrow, pairs = row.partition("↑")
    if row in OTHERS:
        return OTHERS[row]
    if not arrow:
        return "vast-start" if method == "VAST" else f"{method.lower()}-complete"
    return f"{method.lower()}-{pairs.lower() or 'both'}"


def direction(producer: str, column: str, metric: str) -> Value:
    """What a column such as "MSR-VTT T→V" asks of a run, or of a model of others, which has no matching head."""
    dataset, _, arrow = column.rpartition(" ")
    source, _, target = arrow.partition("→")
    if producer in OTHERS.values():
        return Value(producer, RETRIEVED[dataset], f"{LETTERS[source]}->{LETTERS[target]}", metric)
    return Value(producer, RETRIEVED[dataset], BY_ALL if source == "T" else FROM_ALL, metric)


def _cells(table: PublishedTable, value: Callable[[str, str], Value]) -> tuple[Cell, ...]:
    """All cells of a printed table; `value(row, column)` is ours, and an average is that of the other columns."""
    others = [column for column in table.columns if column != AVERAGE]
    return tuple(
        Cell(row, column, number, tuple(value(row, name) for name in (others if column == AVERAGE else [column])))
        for row, numbers in table.rows.items()
        for column, number in zip(table.columns, numbers, strict=True)
    )


def _retrieval(name: str, metric: str, *notes: str) -> PaperTable:
    table = published(name)
    cells = _cells(table, lambda row, column: direction(run_of(row), column, metric))
    return PaperTable(name, table.title, cells, notes=(RERANKED, *notes))


def table1() -> PaperTable:
    """retrieval, R@1: all methods before and after training on MSR-VTT and AudioCaps"""
    return _retrieval(
        "table1", "R@1", "VAST is its checkpoint as it is; GRAM, TRIANGLE and PMRL went on with VAST-150K."
    )


def table2() -> PaperTable:
    """classification, accuracy: projectors on ImageBind, classes by their names"""

    def value(row: str, column: str) -> Value:
        collection, modality = CLASSIFIED[column]
        producer = OTHERS.get(row) or f"{row.removesuffix('↑').lower()}-classes"
        return Value(producer, collection, f"{modality}->class", "accuracy")

    table = published("table2")
    note = "Ours: the class whose name is nearest to the audio (UCF101: to the video); of several labels any counts."
    return PaperTable("table2", table.title, _cells(table, value), 2, (note,))


def table3() -> PaperTable:
    """retrieval, R@1: models trained on audio-text or on vision-text pairs alone"""
    return _retrieval("table3", "R@1")


def table4() -> PaperTable:
    """numbers of training and test items"""
    table = published("table4")
    captions = ("MSR-VTT", "train")  # counted instead of its items
    cells = _cells(
        table, lambda *cell: Value(COUNTS, RETRIEVED[cell[0]], cell[1], "texts" if cell == captions else "items")
    )
    note = "Ours: items of which a media file is there; of MSR-VTT, captions that train."
    printed = tuple(cell for cell in cells if cell.published is not None)
    return PaperTable("table4", table.title, printed, 0, (note,))


def table5() -> PaperTable:
    """retrieval, R@5: the runs of tables 1 and 3"""
    return _retrieval("table5", "R@5")


def table6() -> PaperTable:
    """retrieval, R@10: the runs of tables 1 and 3"""
    return _retrieval("table6", "R@10")


def table7() -> PaperTable:
    """retrieval, R@1: other generative models in place of the latent one"""

    def value(row: str, column: str) -> Value:
        run = "calmrl-both" if row == "CalMRL" else f"calmrl-both-{row.lower().replace(' ', '_')}"
        return Value(run, RETRIEVED[column], BY_ALL, "R@1")

    table = published("table7")
    note = (
        "One direction, from text. The paper's line of CalMRL has 55.4 under ActivityNet and 57.1 under DiDeMo; its Table 1 "
        "has them the other way round."
    )
    return PaperTable("table7", table.title, _cells(table, value), notes=(RERANKED, note))


def table8() -> PaperTable:
    """retrieval, average R@1: τ, τ′ and α"""
    table = published("table8")
    names = {"tau": "τ", "tau2": "τ′", "alpha": "α"}
    column = "Avg. R@1"
    cells = []
    for parameter, values in SWEEPS.items():
        for value in values:
            row, run = f"{names[parameter]} = {value:g}", swept_name(parameter, value)
            ours = tuple(Value(run, name, BY_ALL, "R@1") for name in dict.fromkeys(RETRIEVED.values()))
            cells.append(Cell(row, column, table.number(row, column), ours))
    return PaperTable("table8", table.title, tuple(cells), 2, (RERANKED, "One direction, from text, as in Table 7."))


CALMRL = "calmrl-both"
VIDEO_COLLECTIONS = ("MSR-VTT", "DiDeMo", "ActivityNet", "VATEX")  # their test items have video, audio and text
CONTINUED = ("VAST↑", "GRAM↑", "TRIANGLE↑", "PMRL↑", "CalMRL↑")
UNPRINTED = "The paper prints no numbers in this figure."


def figure3() -> PaperTable:
    """mean squared error of imputed representations, by direction"""
    cells = []
    for source in LETTERS:
        for target in (letter for letter in LETTERS if letter != source):
            task = f"{LETTERS[source]}->{LETTERS[target]}"
            for column, metric in (("imputed", "mse"), ("random", "mse_random")):
                cells.append(Cell(f"{source}→{target}", column, None, (Value(CALMRL, "msrvtt", task, metric),)))
    note = "CalMRL↑ on test items of MSR-VTT that have video and audio; random: the vector of another item."
    return PaperTable("figure3", "MSE between real and imputed representations", tuple(cells), 5, (UNPRINTED, note))


def figure4() -> PaperTable:
    """anchor shift with missing modalities, before and after calibration"""
    cells = [
        Cell(row, column, None, (Value(CALMRL, RETRIEVED[column], task, "anchor_shift"),))
        for row, task in (("missing", "observed"), ("calibrated", "calibrated"))
        for column in VIDEO_COLLECTIONS
    ]
    note = "CalMRL↑ on test items with video, audio and text, each without one of them."
    return PaperTable("figure4", "Anchor shift before and after calibration", tuple(cells), 3, (UNPRINTED, note))


def figure5() -> PaperTable:
    """retrieval, R@1: missing, calibrated and complete modalities, trained on MSR-VTT"""
    sole, overall = published("table3"), published("table1")
    rows = {
        "before": (run_of("PMRL"), overall.rows["PMRL"]),
        "missing": (run_of("PMRL↑VT"), sole.rows["PMRL↑VT"]),
        "calibrated": (run_of("CalMRL↑VT"), sole.rows["CalMRL↑VT"]),
        "ideal": ("pmrl-ideal", [None] * len(sole.columns)),
    }
    cells = [
        Cell(row, column, numbers[place], (direction(run, column, "R@1"),))
        for row, (run, numbers) in rows.items()
        for place, column in enumerate(sole.columns[:-1])
    ]
    note = (
        "Printed numbers are PMRL of Table 1, PMRL↑VT and CalMRL↑VT of Table 3; the ideal model trains with the audio."
    )
    return PaperTable(
        "figure5", "Missing, calibrated and complete modalities, R@1 (%)", tuple(cells), notes=(RERANKED, note)
    )


def figure6() -> PaperTable:
    """where the modalities lie: distances of their centres, and t-SNE maps"""
    pairs = {"V, A": "vision|audio", "V, T": "vision|text", "A, T": "audio|text"}
    cells = [
        Cell(row, column, None, (Value(run_of(row), "msrvtt", task, "modality_gap"),))
        for row in CONTINUED
        for column, task in pairs.items()
    ]
    note = "Distance between the centres of two modalities on test items of MSR-VTT; maps are drawn beside this file."
    return PaperTable("figure6", "Representations of the modalities", tuple(cells), 3, (UNPRINTED, note))


def figure7() -> PaperTable:
    """the loss while training"""
    cells = [
        Cell(row, column, None, (Value(run_of(row), "", "loss", column),))
        for row in CONTINUED
        for column in ("first", "last")
    ]
    note = (
        "The whole loss in the stage with missing modalities, first and last record; curves are drawn beside this file."
    )
    return PaperTable("figure7", "Loss curves in training", tuple(cells), 3, (UNPRINTED, note))


PAPER_TABLES: Registry[Callable[[], PaperTable]] = Registry(  # Figures 1 and 2 are illustrations
    "table or figure",
    {
        make.__name__: make
        for make in (
            *(table1, table2, table3, table4, table5, table6, table7, table8),
            *(figure3, figure4, figure5, figure6, figure7),
        )
    },
)
