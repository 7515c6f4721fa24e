"""How long to wait for something before it counts as hanging."""

from __future__ import annotations

import psutil


def patience(seconds: float) -> float:
    """Seconds to give to what takes at most this long where nothing else runs: more, the more processes want a core."""
    return seconds * max(2.0, 2 * max(psutil.getloadavg()[:2]) / (psutil.cpu_count() or 1))
