"""Types of arguments and of keys of configs, and checks of arguments with one kind of error for all."""

from __future__ import annotations

from collections.abc import Sequence
from numbers import Integral, Real
from typing import Annotated, Any, Literal

from annotated_types import Ge, Gt, Le, Lt

from calmrl._support.text import closest
from calmrl.errors import InputError

Auto = Literal["auto"]
Count = Annotated[int, Ge(1)]
Positive = Annotated[float, Gt(0)]
NotNegative = Annotated[float, Ge(0)]
Share = Annotated[float, Ge(0), Lt(1)]  # may be 0, never everything
Fraction = Annotated[float, Ge(0), Le(1)]
Seed = Annotated[int, Ge(0)]


def check_choice(name: str, value: Any, allowed: Sequence[str]) -> None:
    """`value` is one of the allowed names; the error lists them and the closest match."""
    if value not in allowed:
        near = closest(str(value), allowed)
        hint = f"; did you mean {near!r}?" if near else ""
        raise InputError(f"{name} must be one of {', '.join(map(repr, allowed))}; got {value!r}{hint}")


def check_whole(name: str, value: Any, least: int = 1, also: str = "") -> None:
    """`value` is a whole number from `least` on; `also` says in the error what else would do."""
    if isinstance(value, (bool, str)) or int(value) != value or value < least:
        raise InputError(f"{name} must be a whole number >= {least}{also}; got {value!r}")


def check_number(
    name: str, value: Any, low: float, high: float = float("inf"), what: str = "a number", also: str = ""
) -> None:
    """`value` is a finite number from `low` to `high`; `also` says in the error what else would do."""
    number = isinstance(value, Real) and not isinstance(value, bool)
    if not number or not low <= value <= high or value == float("inf"):
        limits = f">= {low:g}" if high == float("inf") else f"from {low:g} to {high:g}"
        raise InputError(f"{name} must be {what} {limits}{also}; got {value!r}")


def seed_of(random_state: Any) -> int:
    """A whole number from what scikit-learn calls a random state; None draws one."""
    if isinstance(random_state, Integral):
        return int(random_state)
    from sklearn.utils import check_random_state

    return int(check_random_state(random_state).randint(2**31 - 1))
