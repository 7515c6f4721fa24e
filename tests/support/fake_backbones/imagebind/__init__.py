"""A stand-in for the official package: the same functions and arguments, a tiny random model."""

CALLS: list[tuple] = []
