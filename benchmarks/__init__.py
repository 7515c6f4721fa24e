"""Speed as a ratio against something everyone can run, one thread: `python -m benchmarks --out bench-out`.

A benchmark is a module here with `run() -> list[dict]`; a row has the keys case, ours_s, theirs_s, ratio, target, note.
"""
