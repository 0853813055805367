"""Several comparisons with one baseline, looked at together: the more one looks, the more looks like an effect.

Each comparison by itself corrects for its own gated metrics only. Here all gated metrics of all comparisons are one
family: p-values are Holm's over all of them (Scandinavian Journal of Statistics 6, 1979), and intervals are
simultaneous (Bonferroni), so that with 95 % confidence every one of them holds the truth.
"""

from __future__ import annotations

from collections.abc import Sequence

from exporters.compare import Comparison
from exporters.verdict import CONFIDENCE, judge_family


def judge_together(comparisons: Sequence[Comparison]) -> int:
    """Judges the gated metrics of all comparisons anew, as one family; returns its size.

    Comparisons that were refused are left as they are. Figures that are not gated keep their own judgement.
    """
    family = [(c, m) for c in comparisons if not c.refused for m in c.gated if m.effect is not None]
    judge_family(family, confidence=1 - (1 - CONFIDENCE) / max(len(family), 1))
    return len(family)
