"""What a search found: each config's limit, predicted and measured, what it saved, and whether the prediction held."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tailgate.exits import Exit
from vllm_launch.experiments.cost import dollars_text, gpus, per_million
from vllm_launch.experiments.file import Arm
from vllm_launch.experiments.page import Table, write_page
from vllm_launch.experiments.plan import differences_text
from vllm_launch.search.file import Search
from vllm_launch.search.rate import CONFIDENCE, Probe, RateSearch
from vllm_launch.search.screening import Screen
from vllm_launch.text_table import table

SEARCH_SCHEMA = "tailgate.search/1"
# A prediction that misses by no more than this has led to the right place.
HELD_WITHIN = 0.1


@dataclass
class Limit:
    """One config's highest rate, as far as it was predicted and measured."""

    arm: Arm
    predicted: RateSearch | None = None
    measured: RateSearch | None = None

    @property
    def predicted_rate(self) -> float:
        """Requests/s in virtual time; 0 where none was found."""
        return self.predicted.best if self.predicted else 0.0

    @property
    def rate(self) -> float:
        """Requests/s as measured; 0 where it was not measured or no rate met the SLO."""
        return self.measured.best if self.measured else 0.0

    @property
    def held(self) -> bool | None:
        """Whether the prediction led to the right place; None where one of both is missing."""
        if not (self.predicted_rate and self.rate and self.measured):
            return None
        crossing = self.measured.crossing
        low, high = (crossing.low, crossing.high) if crossing else (self.rate, self.rate)
        return low * (1 - HELD_WITHIN) <= self.predicted_rate <= high * (1 + HELD_WITHIN)

    def to_dict(self) -> dict[str, Any]:
        """JSON-able."""
        crossing = self.measured.crossing if self.measured else None
        return {
            "config": self.arm.name,
            "changes": dict(self.arm.changes),
            "predicted_requests_per_s": self.predicted_rate or None,
            "requests_per_s": self.rate or None,
            "low": crossing.low if crossing else None,
            "high": crossing.high if crossing else None,
            "prediction_held": self.held,
            "probes": [_probe(p) for p in self.measured.probes] if self.measured else [],
        }


def _probe(probe: Probe) -> dict[str, Any]:
    return {
        "rate": probe.rate,
        "verdict": probe.verdict,
        "decided_by": probe.decided_by,
        "margin": probe.margin,
        "error": probe.error,
        "values": {text: judged.value for text, judged in probe.judged.items()},
        "run": probe.name,
        "valid": probe.valid,
    }


@dataclass(frozen=True)
class SearchResult:
    """A finished search. `screen` is the embedded engine as it was calibrated, where it was; None if not asked."""

    search: Search
    limits: list[Limit]
    screen: Screen | None
    calibration_rate: float | None
    real_runs: int

    @property
    def best(self) -> Limit:
        """The config that carries most, as measured."""
        return max(self.limits, key=lambda limit: limit.rate)

    @property
    def baseline(self) -> Limit:
        return self.limits[0]

    @property
    def simulated(self) -> bool:
        return self.search.file.engine == "simulated"

    @property
    def saved_runs(self) -> int:
        """Real runs that the configs would have taken that were only screened, at what the measured ones took."""
        measured = [limit for limit in self.limits if limit.measured]
        taken = sum(len(limit.measured.probes) for limit in measured if limit.measured)
        calibration = 1 if self.calibration_rate else 0
        return round(taken / max(len(measured), 1) * (len(self.limits) - len(measured))) - calibration

    @property
    def exit_code(self) -> Exit:
        """3 where no rate met the SLO, 4 where a probe that counted was not valid, else 0."""
        if not self.best.rate:
            return Exit.REGRESSION
        invalid = any(not p.valid for limit in self.limits if limit.measured for p in limit.measured.probes)
        return Exit.NOT_VALID if invalid else Exit.GOOD

    def to_dict(self) -> dict[str, Any]:
        """For `--json` and `search.json`."""
        return {
            "schema": SEARCH_SCHEMA,
            "simulated": self.simulated,
            "slo": self.search.file.slo,
            "workload": self.search.file.workload,
            "tolerance": self.search.file.tolerance,
            "confidence": CONFIDENCE,
            "best": self.best.arm.name if self.best.rate else None,
            "requests_per_s": self.best.rate or None,
            "real_runs": self.real_runs,
            "saved_runs": self.saved_runs,
            "calibration": None
            if not self.calibration_rate or not self.screen
            else {"requests_per_s": self.calibration_rate, **self.screen.to_dict()},
            "configs": [limit.to_dict() for limit in self.limits],
        }

    @property
    def sentence(self) -> str:
        """The answer in one or two sentences."""
        slo = self.search.file.slo
        if not self.best.rate:
            return f"No rate that was tried met {slo}."
        name = self.best.arm.config.name
        said = f"{name} carries {self.best.rate:.3g} requests/s{_interval(self.best)} within {slo}."
        if len(self.limits) > 1 and self.best is not self.baseline and self.baseline.rate:
            more = self.best.rate / self.baseline.rate - 1
            changes = "; ".join(differences_text(self.baseline.arm.config, self.best.arm.config))
            said += f" That is {more:+.0%} against {self.baseline.arm.config.name} ({changes})."
        return said

    @property
    def head(self) -> list[str]:
        """The table's columns."""
        priced = ["$ a million tokens"] if self.search.file.gpu_hour_price else []
        return ["config", "predicted req/s", "measured req/s", f"{CONFIDENCE:.0%} interval", "runs", *priced, "held"]

    @property
    def rows(self) -> list[list[str]]:
        """A line for each config, the most carried first."""
        rows = []
        for limit in sorted(self.limits, key=lambda one: (-one.rate, -one.predicted_rate)):
            runs = f"{len(limit.measured.probes)}" if limit.measured else "0"
            held = {True: "yes", False: "NO", None: ""}[limit.held]
            price = self.search.file.gpu_hour_price
            cost = [dollars_text(self._dollars(limit, price))] if price else []
            rows.append(
                [
                    limit.arm.name,
                    f"{limit.predicted_rate:.3g}" if limit.predicted_rate else "-",
                    f"{limit.rate:.3g}" if limit.rate else "none" if limit.measured else "-",
                    _interval(limit).strip(" ()"),
                    runs,
                    *cost,
                    held,
                ]
            )
        return rows

    def _dollars(self, limit: Limit, price: float) -> float | None:
        if not limit.measured:
            return None
        tokens = [p.output_tokens_per_s / p.rate for p in limit.measured.probes if p.rate]
        per_request = sum(tokens) / len(tokens) if tokens else 0.0
        return per_million(price, gpus(limit.arm.config), per_request * limit.rate)

    @property
    def foot(self) -> str:
        """What it took."""
        said = f"{self.real_runs} real runs"
        if self.calibration_rate:
            error = self.screen.error if self.screen else None
            said += f", one of them at {self.calibration_rate:g} requests/s to calibrate the embedded engine"
            said += f" (it then missed by {error:.1%} on average)" if error is not None else ""
        if len(self.limits) > 1:
            said += f"; screening in virtual time saved about {max(self.saved_runs, 0)}"
            checked = [limit.held for limit in self.limits if limit.held is not None]
            said += f"; the prediction held for {sum(checked)} of {len(checked)} that were measured"
        return said

    def text(self) -> str:
        """For the screen."""
        lines = ["SIMULATED: these figures come from the embedded engine, not from a GPU."] if self.simulated else []
        return "\n".join([*lines, self.sentence, "", *table(self.head, self.rows), "", self.foot])

    def write_report(self, path: Path, command: str) -> None:
        """Writes the HTML report."""
        probes = [
            [limit.arm.name, f"{p.rate:g}", *_values(p.judged), p.verdict, p.decided_by, "yes" if p.valid else "NO"]
            for limit in self.limits
            if limit.measured
            for p in limit.measured.probes
        ]
        objectives = [o.text for o in self.search.objectives]
        head = ["config", "requests/s", *objectives, "done", "verdict", "decided by", "valid"]
        write_page(
            path,
            kicker="Tailgate search",
            title=self.sentence,
            simulated=self.simulated,
            tables=[Table("Limits", self.head, self.rows, self.foot), Table("Every real run", head, probes)],
            command=command,
        )


def _values(judged: Mapping[str, Any]) -> list[str]:
    shown = []
    for text, one in judged.items():
        share = text.startswith(("done", "error_share"))
        shown.append("-" if one.value is None else f"{one.value:.1%}" if share else f"{one.value * 1e3:,.4g} ms")
    return shown


def _interval(limit: Limit) -> str:
    crossing = limit.measured.crossing if limit.measured else None
    return f" ({crossing.low:.3g} to {crossing.high:.3g})" if crossing else ""
