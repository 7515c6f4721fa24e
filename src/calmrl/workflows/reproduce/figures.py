"""The figures of the paper that show numbers. It prints none of them, except those that stand in its tables too."""

from calmrl.workflows.reproduce.exhibit import Cell, Exhibit, Value, published
from calmrl.workflows.reproduce.tables import LETTERS, RERANKED, RETRIEVED, direction, run_of

CALMRL = "calmrl-both"
FILMS = ("MSR-VTT", "DiDeMo", "ActivityNet", "VATEX")  # their test items have film, sound and text
CONTINUED = ("VAST↑", "GRAM↑", "TRIANGLE↑", "PMRL↑", "CalMRL↑")
LOSS = "loss"
MAP = "map"  # the task that t-SNE belongs to
UNPRINTED = "The paper prints no numbers in this figure."


def figure3() -> Exhibit:
    """mean squared error of imputed representations, by direction"""
    cells = []
    for source in LETTERS:
        for target in (letter for letter in LETTERS if letter != source):
            task = f"{LETTERS[source]}->{LETTERS[target]}"
            for column, metric in (("imputed", "mse"), ("random", "mse_random")):
                cells.append(Cell(f"{source}→{target}", column, None, (Value(CALMRL, "msrvtt", task, metric),)))
    note = "CalMRL↑ on test items of MSR-VTT that have film and sound; random: the vector of another item."
    return Exhibit("figure3", "MSE between real and imputed representations", tuple(cells), 5, (UNPRINTED, note))


def figure4() -> Exhibit:
    """anchor shift with missing modalities, before and after calibration"""
    cells = [
        Cell(row, column, None, (Value(CALMRL, RETRIEVED[column], task, "anchor_shift"),))
        for row, task in (("missing", "observed"), ("calibrated", "calibrated"))
        for column in FILMS
    ]
    note = "CalMRL↑ on test items with film, sound and text, each without one of them."
    return Exhibit("figure4", "Anchor shift before and after calibration", tuple(cells), 3, (UNPRINTED, note))


def figure5() -> Exhibit:
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
        "Printed numbers are PMRL of Table 1, PMRL↑VT and CalMRL↑VT of Table 3; the ideal model trains with the sound."
    )
    return Exhibit(
        "figure5", "Missing, calibrated and complete modalities, R@1 (%)", tuple(cells), notes=(RERANKED, note)
    )


def figure6() -> Exhibit:
    """where the modalities lie: distances of their centres, and t-SNE maps"""
    pairs = {"V, A": "vision|audio", "V, T": "vision|text", "A, T": "audio|text"}
    cells = [
        Cell(row, column, None, (Value(run_of(row), "msrvtt", task, "modality_gap"),))
        for row in CONTINUED
        for column, task in pairs.items()
    ]
    note = "Distance between the centres of two modalities on test items of MSR-VTT; maps are drawn beside this file."
    return Exhibit("figure6", "Representations of the modalities", tuple(cells), 3, (UNPRINTED, note))


def figure7() -> Exhibit:
    """the loss while training"""
    cells = [
        Cell(row, column, None, (Value(run_of(row), "", LOSS, column),))
        for row in CONTINUED
        for column in ("first", "last")
    ]
    note = (
        "The whole loss in the stage with missing modalities, first and last record; curves are drawn beside this file."
    )
    return Exhibit("figure7", "Loss curves in training", tuple(cells), 3, (UNPRINTED, note))
