"""What a run does without, counted per part of the split."""

from calmrl.data.media.problems import MediaProblem, count_skipped, counts_of_test, skipped_words

PARTS = {"a": "train", "b": "test", "c": "test", "d": "test", "e": ""}


def problem(kind: str, scope: str, name: str, column: str = "") -> MediaProblem:
    return MediaProblem(kind, scope, 1, name, column, "")


def test_items_and_modalities_are_counted_where_they_belong() -> None:
    problems = [
        problem("file not found", "cell", "b", "vision"),
        problem("no audio stream", "cell", "b", "audio"),
        problem("file not found", "cell", "c", "vision"),
        problem("no modality at all", "row", "c"),
        problem("duplicate id", "row", "a"),  # a row of its own, that became no item
        problem("unknown column", "table", ""),
    ]
    left_out = count_skipped(PARTS, problems)
    assert left_out == {
        "train": {"listed": 2, "items": 1},
        "test": {"listed": 3, "vision": 2, "audio": 1, "items": 1},
        "": {"listed": 1},
    }
    test = counts_of_test(left_out)
    assert skipped_words(test) == "1 item, vision of 2, audio of 1 (of 3 listed items)"
    assert counts_of_test(left_out, whole=True) == {"listed": 6, "items": 2, "vision": 2, "audio": 1}
    assert counts_of_test({"train": {"listed": 2, "items": 1}}) == {"listed": 2, "items": 1}


def test_nothing_left_out_is_no_sentence() -> None:
    assert count_skipped(PARTS, [problem("unknown column", "table", "")]) == {}
    assert counts_of_test({}) == {}
    assert skipped_words({}) == skipped_words({"listed": 3}) == ""
