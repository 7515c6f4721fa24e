"""What cannot be used: lines about it, and what a run does without, counted per part of the split."""

from calmrl.data.media.problems import MediaProblem, Problems, count_skipped, counts_of_test, skipped_words

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
        problem("wrong number of fields", "row", ""),
        problem("unknown column", "table", ""),
        problem("stranger", "file", ""),
    ]
    left_out = count_skipped(PARTS, problems)
    assert left_out == {
        "train": {"listed": 2, "items": 1},
        "test": {"listed": 3, "vision": 2, "audio": 1, "items": 1},
        "": {"listed": 2, "items": 1},
    }
    test = counts_of_test(left_out)
    assert skipped_words(test) == "1 item, vision of 2, audio of 1 (of 3 listed items)"
    assert counts_of_test(left_out, whole=True) == {"listed": 7, "items": 3, "vision": 2, "audio": 1}
    assert counts_of_test({"train": {"listed": 2, "items": 1}}) == {"listed": 2, "items": 1}


def test_nothing_left_out_is_no_sentence() -> None:
    assert count_skipped(PARTS, [problem("unknown column", "table", "")]) == {}
    assert counts_of_test({}) == {}
    assert skipped_words({}) == skipped_words({"listed": 3}) == skipped_words({"listed": 3, "items": 0}) == ""
    assert skipped_words({"listed": 2000, "vision": 1500, "audio": 0}) == "vision of 1,500 (of 2,000 listed items)"


def test_problems_as_lines():
    problems = Problems()
    for number in range(1, 5):
        problems.add("gone", "cell", line=number, id=f"i{number}", column="vision", detail="x.mp4")
    for number in range(3):
        problems.add("strange", "file", detail=f"f{number}")
    assert (len(problems), len(problems.blocking())) == (7, 4)
    many = "line 1, id i1, vision: x.mp4; line 2, id i2, vision: x.mp4; line 3, id i3, vision: x.mp4; and 1 more"
    assert problems.lines(allowed=False) == [f"4 x gone: {many}", "3 x strange -> left aside: f0; f1; f2"]
    assert problems.lines(allowed=True)[0] == f"4 x gone -> this modality counts as missing: {many}"
