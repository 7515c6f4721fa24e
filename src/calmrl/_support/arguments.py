"""Types of arguments that configs check too: a constructor annotated with them needs no second description."""

from typing import Annotated, Literal

from annotated_types import Ge, Gt, Le, Lt

Auto = Literal["auto"]
Count = Annotated[int, Ge(1)]
Positive = Annotated[float, Gt(0)]
NotNegative = Annotated[float, Ge(0)]
Share = Annotated[float, Ge(0), Lt(1)]  # may be 0, never everything
Fraction = Annotated[float, Ge(0), Le(1)]
Seed = Annotated[int, Ge(0)]
