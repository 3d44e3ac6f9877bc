"""Intervals of success rates."""

import math


def wilson_interval(successes: int, n: int) -> tuple[float, float]:
    """Compute the 95 % score interval of a proportion (Wilson, 1927): ``(low, high)``."""
    z, rate = 1.959964, successes / n
    centre = (rate + z * z / (2 * n)) / (1 + z * z / n)
    half = z / (1 + z * z / n) * math.sqrt(rate * (1 - rate) / n + z * z / (4 * n * n))
    # The bounds are exact at the ends, where rounding would overshoot.
    return (centre - half if successes else 0.0), (centre + half if successes < n else 1.0)
