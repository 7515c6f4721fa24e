"""What is wrong with a config, as data and as text."""

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

from calmrl.errors import InputError

ABSENT = object()


@dataclass(frozen=True)
class ConfigProblem:
    """One mistake: the key, where it was written, what is wrong, what was got, the nearest valid key or value."""

    key: str
    where: str
    message: str
    got: Any = ABSENT
    closest: str | None = None

    def __str__(self) -> str:
        place = ", ".join(part for part in (self.where, self.key) if part)
        got = "" if self.got is ABSENT else f"; got {self.got!r}"
        hint = f'; did you mean "{self.closest}"?' if self.closest else ""
        return f"{place}: {self.message}{got}{hint}" if place else f"{self.message}{got}{hint}"

    def as_dict(self) -> dict[str, Any]:
        row = asdict(self)
        row["got"] = None if self.got is ABSENT else self.got
        return row


class ConfigError(InputError):
    """Every mistake of a config at once, in `problems`."""

    def __init__(self, name: str, problems: Sequence[ConfigProblem]) -> None:
        self.problems = list(problems)
        count = f"{len(self.problems)} mistake{'' if len(self.problems) == 1 else 's'}"
        super().__init__("\n".join([f"{name}: {count}", *(f"  {problem}" for problem in self.problems)]))


def dotted(path: Sequence[str | int]) -> str:
    """("imputers", 0, "method") -> "imputers.0.method", as overrides are written."""
    return ".".join(str(part) for part in path)
