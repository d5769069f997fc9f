"""Statistics of few runs: the interquartile mean, and its bootstrap interval.

Source: Agarwal et al., "Deep Reinforcement Learning at the Edge of the Statistical Precipice",
arXiv:2108.13264. A median of few runs jumps from one run to the next. A mean follows a
single unlucky run. The mean of the middle half does neither.
"""

from collections.abc import Callable

import numpy as np

RESAMPLES = 10_000
CONFIDENCE = 0.95
Statistic = Callable[[np.ndarray], np.ndarray]  # of the last axis


def interquartile_mean(values: np.ndarray) -> np.ndarray:
    """The mean without the lowest and the highest quarter, each rounded down to whole runs.

    Args:
        values: float, (..., runs).

    Returns:
        float, (...).
    """
    ordered = np.sort(values, axis=-1)
    runs = ordered.shape[-1]
    return ordered[..., runs // 4 : runs - runs // 4].mean(axis=-1)


def bootstrap_interval(
    values: np.ndarray,
    statistic: Statistic = interquartile_mean,
    confidence: float = CONFIDENCE,
    seed: int = 0,
) -> tuple[float, float]:
    """The percentile interval of a statistic under a bootstrap: runs drawn anew, with replacement.

    Args:
        values: float, (runs,).
        statistic: of the last axis.
        confidence: share of the resamples inside the interval.
        seed: of the resampling, so that a table can be made again.

    Returns:
        The lower and the upper end. Each is the value of a resample, never between two of them.
    """
    random = np.random.default_rng(seed)
    drawn = random.choice(values, (RESAMPLES, len(values)))
    outside = (1 - confidence) / 2
    ends = np.quantile(
        statistic(drawn),
        [outside, 1 - outside],
        method="inverted_cdf",
    )
    return float(ends[0]), float(ends[1])
