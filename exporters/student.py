"""Student's t distribution, as far as an interval needs it (scipy is not worth its 100 MB for two functions)."""

from __future__ import annotations

import math


def two_sided_p(t: float, df: float) -> float:
    """Probability of |T| >= |t| with `df` degrees of freedom."""
    if math.isinf(t):
        return 0.0
    return _incomplete_beta(df / 2, 0.5, df / (df + t * t))


def critical(p: float, df: float) -> float:
    """The t with `two_sided_p(t, df) == p`: Newton's steps, kept inside a bracket that every step narrows."""
    low, high = 0.0, 2.0
    while two_sided_p(high, df) > p:
        low, high = high, high * 2
    t = (low + high) / 2
    scale = math.exp(math.lgamma((df + 1) / 2) - math.lgamma(df / 2)) / math.sqrt(df * math.pi)
    while high - low > 1e-11 * high:
        above = two_sided_p(t, df) - p
        low, high = (t, high) if above > 0 else (low, t)
        step = above / (2 * scale * (1 + t * t / df) ** (-(df + 1) / 2))
        if abs(step) <= 1e-11 * t:
            break
        t = t + step if low < t + step < high else (low + high) / 2
    return t


def _incomplete_beta(a: float, b: float, x: float) -> float:
    """Regularised incomplete beta function (DLMF 8.17.22, continued fraction by Lentz's method)."""
    if x <= 0:
        return 0.0
    if x >= 1:
        return 1.0
    if x > (a + 1) / (a + b + 2):
        return 1 - _incomplete_beta(b, a, 1 - x)
    front = math.exp(math.lgamma(a + b) - math.lgamma(a) - math.lgamma(b) + a * math.log(x) + b * math.log1p(-x))
    tiny = 1e-300
    c, d = 1.0, 1.0 / max(1 - (a + b) * x / (a + 1), tiny)
    value = d
    for m in range(1, 400):
        for term in (
            m * (b - m) * x / ((a + 2 * m - 1) * (a + 2 * m)),
            -(a + m) * (a + b + m) * x / ((a + 2 * m) * (a + 2 * m + 1)),
        ):
            d = 1 + term * d
            c = 1 + term / c
            d = 1 / (d if abs(d) > tiny else tiny)
            c = c if abs(c) > tiny else tiny
            step = c * d
            value *= step
        if abs(step - 1) < 1e-14:
            break
    return front * value / a
