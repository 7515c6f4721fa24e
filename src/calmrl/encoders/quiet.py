"""Libraries in C++ that write to standard error by themselves, without a switch to turn it off."""

from __future__ import annotations

import os
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def without_lines(start: str) -> Iterator[None]:
    """Lines with this beginning do not reach standard error while the block runs; all others do, after it."""
    sys.stderr.flush()
    kept = os.dup(2)
    with tempfile.TemporaryFile() as held:
        os.dup2(held.fileno(), 2)
        try:
            yield
        finally:
            sys.stderr.flush()
            os.dup2(kept, 2)
            os.close(kept)
            held.seek(0)
            for line in held:
                if not line.startswith(start.encode()):
                    os.write(2, line)
