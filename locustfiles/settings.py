"""What the options mean: text of whatever origin read into one checked `Settings`, or one line that names the fault."""

from __future__ import annotations

import os
import re
import secrets
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec

from locustfiles.client.errors import keep_secret
from locustfiles.client.stream import Timeouts
from locustfiles.client.tls import TlsOptions
from locustfiles.options import AS_WORKLOAD, ENTRY, OPTIONS
from tailgate.exits import BadInput
from tailgate.objectives import parse_objectives
from tailgate.thresholds import Gate, parse_gate
from tailgate.yaml_file import check_model
from workloads import load_workload
from workloads.arrivals import ArrivalSpec, parse_stages, parse_wave
from workloads.spec import Workload

_DURATION = re.compile(r"(?P<number>\d+(?:\.\d+)?|\.\d+)\s*(?P<unit>ms|s|m|h)?$")
_UNITS_S = {"ms": 1e-3, "s": 1.0, None: 1.0, "m": 60.0, "h": 3600.0}
_LABEL = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}$")
_NOT_IN_EXTRA_BODY = {"model": "give --model", "stream": "give --no-stream"} | dict.fromkeys(
    ("messages", "prompt", "input"), "let the workload say what is sent"
)
_DEFAULT_DRAIN_S = 30.0
FRESH = "fresh"
"""The value of --salt that asks for a new one each run."""


@dataclass(frozen=True, slots=True)
class Records:
    """How much of the request records a run keeps: `share` 1 is all, 0 none."""

    share: float = 1.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """Everything a run was asked to be. `seed` None: a fresh one each run. Times in seconds."""

    workload: Workload
    arrival: ArrivalSpec
    model: str | None
    max_in_flight: int | None
    num_requests: int | None
    warmup_s: float
    drain_s: float
    seed: int | None
    salt: str
    slo: str | None
    results: Path | None
    label: str | None
    baseline: str | None
    gate: Gate | None
    save_baseline: str | None
    records: Records
    trace: Path | None
    time_scale: float
    tokenizer: Path | None
    timeouts: Timeouts
    tls: TlsOptions
    stream: bool
    retries: int
    save_outputs: bool
    report: bool
    extra_body: dict[str, Any] | None
    clock: str
    ring_packets: int | None
    itl_events: bool
    prometheus_port: int | None


def chosen(options: Any) -> dict[str, Any]:
    """Our part of Locust's namespace as plain data, fit to travel to a worker. Never holds a key."""
    found = {option.dest: getattr(options, option.dest, None) for option in OPTIONS if option.dest != "api_key_file"}
    return found | {name: getattr(options, name, None) for name in ("stop_timeout", "run_time")}


def read_settings(options: Mapping[str, Any], workload: Workload | None = None) -> Settings:
    """The settings that these option texts mean; `workload` is one resolved elsewhere. Raises `BadInput`."""
    text = _Texts(options)
    workload = workload or _workload(text.get("workload") or ENTRY.workload)
    kind = text.get("arrival")
    arrival = workload.arrival.overridden(
        None if kind in (None, AS_WORKLOAD) else kind,
        text.positive("request_rate"),
        text.positive("burstiness"),
        parse_stages(stages) if (stages := text.get("rate_stages")) else None,
        parse_wave(wave) if (wave := text.get("rate_wave")) else None,
        text.positive("rate_per_user"),
    )
    slo = text.get("slo")
    if slo:
        parse_objectives(slo)
    run_time_s, num_requests = text.duration("run_time", 0.0), text.count("num_requests")
    settings = Settings(
        workload=workload,
        arrival=arrival,
        model=text.get("model"),
        max_in_flight=text.count("max_in_flight"),
        num_requests=num_requests,
        warmup_s=text.duration("warmup", _own_warmup_s(workload, run_time_s, num_requests)),
        drain_s=text.duration("drain", text.duration("stop_timeout", 0.0) or _DEFAULT_DRAIN_S),
        seed=text.count("seed", least=0),
        salt=text.get("salt") or "",
        slo=slo or workload.slo,
        results=text.path("results"),
        label=_label(text.get("label"), "--label"),
        baseline=text.get("baseline"),
        gate=_gate(text.get("gate"), workload),
        save_baseline=_label(text.get("save_baseline"), "--save-baseline"),
        records=_records(text.get("records")),
        trace=_trace(text.path("trace"), workload),
        time_scale=text.positive("time_scale") or 1.0,
        tokenizer=text.path("tokenizer"),
        timeouts=Timeouts(
            first=text.limit("first_token_timeout"),
            idle=text.limit("idle_timeout"),
            total=text.limit("request_timeout") or Timeouts().total,
        ),
        tls=TlsOptions(_file(text.path("tls_ca"), "--tls-ca"), text.switch("tls_insecure")),
        stream=not text.switch("no_stream"),
        retries=text.count("retries", least=0) or 0,
        save_outputs=text.switch("save_outputs"),
        report=not text.switch("no_report"),
        extra_body=_extra_body(text.get("extra_body")),
        clock=text.get("clock") or "auto",
        ring_packets=text.count("ring_packets"),
        itl_events=text.switch("itl_events"),
        prometheus_port=text.port("prometheus_port"),
    )
    _check_together(settings, run_time_s)
    if text.get("gate") and settings.gate and settings.gate.changes and not settings.baseline:
        term = settings.gate.changes[0].text
        raise BadInput(f"--gate: '{term}' is held against a baseline", "name one with --baseline")
    return settings


def fresh_salt() -> str:
    """Words that no run has sent yet, whatever its seed."""
    return secrets.token_hex(8)


def fresh_seed() -> int:
    """A seed for a run that named none: new prompts, so that no earlier run's prefix cache can answer them."""
    return secrets.randbelow(2**31)


class ApiKey:
    """The key sent as a bearer token. Read once, before anything runs; shows itself nowhere."""

    __slots__ = ("_key",)

    def __init__(self, key: str | None) -> None:
        self._key = key

    @classmethod
    def find(cls, file: str | None) -> ApiKey:
        """From `file`, else from OPENAI_API_KEY, else none. Raises `BadInput`, which never shows a value."""
        # The value is not named: someone may have put the key itself where its file belongs.
        mend = "give the path of a file that holds the key, or set OPENAI_API_KEY"
        if file:
            try:
                key = Path(file).read_text(encoding="utf-8").strip()
            except (OSError, ValueError):
                raise BadInput("the file given with --api-key-file cannot be read", mend) from None
            source = "the file given with --api-key-file"
        else:
            key, source = os.environ.get("OPENAI_API_KEY", "").strip(), "OPENAI_API_KEY"
        if not key:
            if file:
                raise BadInput(f"{source} is empty", mend)
            return cls(None)
        if not key.isascii() or not key.isprintable() or " " in key:
            raise BadInput(f"{source} holds no key (one line of printable ASCII without blanks)", mend)
        keep_secret(key)
        return cls(key)

    def headers(self) -> dict[str, str]:
        return {"Authorization": f"Bearer {self._key}"} if self._key else {}

    def __bool__(self) -> bool:
        return self._key is not None

    def __repr__(self) -> str:
        return "ApiKey(…)" if self._key else "ApiKey(none)"


class _Texts:
    """Option values by name, each read as what it should be; an empty text means the default."""

    def __init__(self, values: Mapping[str, Any]) -> None:
        self._values = values

    def get(self, name: str) -> str | None:
        value = self._values.get(name)
        return None if value is None or not str(value).strip() else str(value).strip()

    def switch(self, name: str) -> bool:
        return str(self._values.get(name)).lower() in ("true", "1", "yes", "on")

    def path(self, name: str) -> Path | None:
        value = self.get(name)
        return Path(value).expanduser() if value else None

    def duration(self, name: str, default: float) -> float:
        value = self.get(name)
        if value is None:
            return default
        match = _DURATION.match(value)
        if not match:
            raise BadInput(f"{_flag(name)}: '{value}' is no duration", "give seconds, or write it like 500ms or 2m")
        return float(match["number"]) * _UNITS_S[match["unit"]]

    def limit(self, name: str) -> float | None:
        found = self.duration(name, 0.0)
        if self.get(name) is not None and found <= 0:
            raise BadInput(f"{_flag(name)}: the limit must be above 0", "leave it out for the default")
        return found or None

    def positive(self, name: str) -> float | None:
        value = self.get(name)
        if value is None:
            return None
        try:
            number = float(value)
        except ValueError:
            number = float("nan")
        if not 0 < number < float("inf"):
            raise BadInput(f"{_flag(name)}: '{value}' is not a number above 0", "give one")
        return number

    def count(self, name: str, least: int = 1) -> int | None:
        value = self.get(name)
        if value is None:
            return None
        try:
            number = int(value)
        except ValueError:
            number = least - 1
        if not least <= number < 2**63:
            raise BadInput(f"{_flag(name)}: '{value}' is not a whole number", f"give {least} or more")
        return number

    def port(self, name: str) -> int | None:
        number = self.count(name)
        if number is not None and number > 65535:
            raise BadInput(f"{_flag(name)}: {number} is no port", "give 1 to 65535")
        return number


def _flag(name: str) -> str:
    return f"--{name.replace('_', '-')}"


def _workload(name: str) -> Workload:
    workload = load_workload(name)
    if ENTRY.endpoint is None or all(item.endpoint == ENTRY.endpoint for item in workload.classes.values()):
        return workload
    # Through the checks again: a system prompt, say, has no place in a completions request.
    classes = {key: item | {"endpoint": ENTRY.endpoint} for key, item in workload.resolved()["classes"].items()}
    return workload_from(workload.resolved() | {"classes": classes}, f"workload {workload.name} over {ENTRY.endpoint}")


def workload_from(resolved: dict[str, Any], source: str) -> Workload:
    """The workload that `Workload.resolved()` made this of. Raises `BadInput` naming `source`."""
    return check_model(resolved, Workload, source)


def _own_warmup_s(workload: Workload, run_time_s: float, num_requests: int | None) -> float:
    """The workload's warm-up, as far as the run has room for it: a quarter of it; none if requests are counted out."""
    if num_requests is not None:
        return 0.0
    own_s = workload.warm_up.seconds
    return min(own_s, run_time_s / 4) if run_time_s else own_s


def _label(value: str | None, flag: str) -> str | None:
    if value is not None and not _LABEL.match(value):
        raise BadInput(f"{flag}: '{value}' cannot be part of a file name", "use letters, digits, '.', '_' and '-'")
    return value


def _gate(value: str | None, workload: Workload) -> Gate | None:
    """The line's thresholds, else the workload's own."""
    if value:
        return parse_gate(value)
    return parse_gate(workload.gate, f"workload {workload.name}: gate") if workload.gate else None


def _file(path: Path | None, flag: str) -> Path | None:
    if path is not None and not path.is_file():
        raise BadInput(f"{flag}: {path} is not a file", "give the path of one that can be read")
    return path


def _trace(path: Path | None, workload: Workload) -> Path | None:
    """What is replayed: the file of --trace, or a past run's directory, else the one that the workload names."""
    source = workload.trace
    if path is not None and source is not None and source.format == "run":
        if not (path if path.is_dir() else path.parent).joinpath("run.json").is_file():
            raise BadInput(f"--trace: {path} is no run directory", "give one that holds run.json and requests.jsonl")
        return path
    return _file(path, "--trace") or (Path(source.file) if source and source.file else None)


def _records(value: str | None) -> Records:
    mend = "write all, none or sample:RATE with a rate between 0 and 1, such as sample:0.1"
    if value in (None, "all"):
        return Records(1.0)
    if value == "none":
        return Records(0.0)
    kind, _, rate = str(value).partition(":")
    try:
        share = float(rate)
    except ValueError:
        share = -1.0
    if kind != "sample" or not 0 < share <= 1:
        raise BadInput(f"--records: cannot read '{value}'", mend)
    return Records(share)


def _extra_body(value: str | None) -> dict[str, Any] | None:
    if value is None:
        return None
    try:
        found = msgspec.json.decode(value.encode())
    except (msgspec.DecodeError, UnicodeEncodeError, RecursionError) as error:
        raise BadInput(f"--extra-body: not JSON ({error})", 'write an object like {"top_k": 1}') from None
    if not isinstance(found, dict):
        raise BadInput("--extra-body: not a JSON object", 'write one like {"top_k": 1}')
    for key, mend in _NOT_IN_EXTRA_BODY.items():
        if key in found:
            raise BadInput(f"--extra-body: '{key}' is set by the suite itself", mend)
    return found


def _check_together(settings: Settings, run_time_s: float) -> None:
    """Faults that no option has alone."""
    workload, trace = settings.workload, settings.trace
    if workload.grid:
        point = next(iter(workload.grid.points()))
        raise BadInput(f"workload {workload.name} is a grid", f"choose a point such as {workload.name}:{point}")
    if workload.trace and trace is None:
        raise BadInput(f"workload {workload.name} replays a trace", "give its file with --trace FILE")
    if trace and not workload.trace:
        raise BadInput(f"workload {workload.name} takes no trace", "leave out --trace, or choose azure-code, say")
    if settings.arrival.kind == "trace" and not (workload.trace and workload.trace.timed):
        raise BadInput(f"workload {workload.name} has no trace to take times from", "choose another --arrival")
    if settings.time_scale != 1 and settings.arrival.kind != "trace":
        raise BadInput(
            f"--time-scale is the pace of a trace; here arrivals are {settings.arrival.kind}", "leave it out"
        )
    if settings.max_in_flight is not None and not settings.arrival.open:
        raise BadInput("--max-in-flight is for open loop; in closed loop -u is that limit", "leave it out")
    if run_time_s and settings.warmup_s >= run_time_s:
        raise BadInput(
            f"--warmup {settings.warmup_s:g} leaves nothing of --run-time {run_time_s:g}", "lengthen the run"
        )
