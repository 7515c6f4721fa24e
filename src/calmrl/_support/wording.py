"""Small parts of sentences, the same in every message, report and page."""

from collections.abc import Sequence


def plural(count: int, one: str, many: str = "") -> str:
    """1 seed, 3,000 seeds; 1 modality, 2 modalities."""
    return f"{count:,} {one if count == 1 else many or f'{one}s'}"


def listed(names: Sequence[str]) -> str:
    """a, b and c"""
    return " and ".join(part for part in (", ".join(names[:-1]), *names[-1:]) if part)


def capital(text: str) -> str:
    """With a capital first letter."""
    return text[:1].upper() + text[1:]


def sentence(text: str) -> str:
    """With a capital first letter and one full stop at the end."""
    return capital(text).rstrip(".") + "."


def fixed(value: float, decimals: int) -> str:
    """A number with fixed decimals and a proper minus sign; never -0."""
    text = f"{value:,.{decimals}f}"
    return text.lstrip("-") if float(text.replace(",", "")) == 0 else text.replace("-", "−")
