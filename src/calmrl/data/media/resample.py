"""Sound at another rate through a windowed sinc filter, as the audio package of PyTorch does it.

    y(n) = sum_k x(k) h(n / new - k / old),   h(t) = f / old * sinc(f t) * cos^2(pi f t / 12)   where |f t| < 6,

with f = 0.99 min(old, new): six zero crossings on each side, and a cut a little below half the lower rate.
"""

import math

import numpy as np

CROSSINGS, ROLLOFF = 6, 0.99


def resample(samples: np.ndarray, old: int, new: int) -> np.ndarray:
    """Samples (T,) at rate `old` -> (ceil(T new / old),) float32 at rate `new`."""
    if old == new:
        return samples.astype(np.float32)
    from scipy.signal import upfirdn  # a fifth of a second, which reading features should not cost

    shared = math.gcd(old, new)
    old, new = old // shared, new // shared
    cut = ROLLOFF * min(old, new)
    reach = old * math.ceil(CROSSINGS * new / cut)  # in steps of 1 / (old new); a multiple of `old`
    place = np.arange(-reach, reach + 1) * cut / (old * new)
    window = np.where(np.abs(place) < CROSSINGS, np.cos(np.pi * place / (2 * CROSSINGS)) ** 2, 0.0)
    filtered = upfirdn(cut / old * np.sinc(place) * window, samples.astype(np.float64), up=new, down=old)
    length = -(-len(samples) * new // old)
    return filtered[reach // old : reach // old + length].astype(np.float32)
