"""What the numbers do without, as a sentence for every table."""

from collections.abc import Mapping

from calmrl.data.media.left_out import left_out_words


def left_out_sentence(counts: Mapping[str, Mapping[str, int]]) -> str:
    """Left out: clips: vision of 37 (of 1,000 listed items). Empty if nothing is.

    Parameters
    ----------
    counts : mapping of str to mapping
        Data set -> its counts, as `calmrl.data.media.left_out` makes them.
    """
    parts = [f"{name}: {words}" for name, some in counts.items() if (words := left_out_words(some))]
    return f"Left out: {'; '.join(parts)}." if parts else ""
