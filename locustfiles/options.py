"""The suite's options: on Locust's command line, in its web form, in config files and as `LOCUST_…` variables.

Declared here, read and checked in `settings`. Every value stays text until then, because Locust's web form writes text
into the same namespace and converts by the type of the value it finds there.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from workloads.arrivals import KINDS

AS_WORKLOAD = "workload"
"""The value of --arrival that leaves the arrivals to the workload."""


@dataclass(frozen=True, slots=True)
class Option:
    """One option; `default` is what an empty value means, said in the help and applied in `settings`."""

    flag: str
    help: str
    metavar: str | None = None
    choices: tuple[str, ...] | None = None
    default: str | None = None
    switch: bool = False
    in_web_form: bool = True

    @property
    def dest(self) -> str:
        return self.flag.removeprefix("--").replace("-", "_")

    @property
    def env_var(self) -> str:
        return f"LOCUST_{self.dest.upper()}"


OPTIONS: tuple[Option, ...] = (
    Option("--workload", "what is sent: a preset's name (python -m workloads list) or a YAML file", "NAME|FILE"),
    Option("--model", "model to ask for (default: the server's only one)", "NAME"),
    Option(
        "--arrival",
        "how requests come: closed (each user waits for its answer) or open loop; 'workload' does as the workload says",
        choices=(AS_WORKLOAD, *KINDS),
        default=AS_WORKLOAD,
    ),
    Option("--request-rate", "open loop: requests per second of the whole fleet, whatever -u says", "R"),
    Option(
        "--rate-stages",
        "open loop: ramps and steps, LENGTH:RATE,… from --request-rate (or 0) on, such as 60s:200,0s:50,2m:50",
        "STAGES",
    ),
    Option("--rate-wave", "open loop: the rate swings around --request-rate, PERIOD:SWING such as 24h:80%%", "WAVE"),
    Option("--rate-per-user", "open loop: the rate is Locust's number of users times this", "R"),
    Option("--burstiness", "gamma arrivals: 1 is poisson, below it burstier (default 1)", "B"),
    Option("--max-in-flight", "open loop: most requests in flight, fleet-wide; beyond it they leave late", "N"),
    Option("--num-requests", "end the run after this many requests, warm-up included", "N"),
    Option(
        "--warmup",
        "seconds at the start that do not count (default: the workload's, or a quarter of a short run)",
        "S",
    ),
    Option("--drain", "seconds given to requests in flight at the end (default: --stop-timeout, else 30)", "S"),
    Option("--seed", "the same seed sends the same requests (default: a new one each run, in run.json)", "N"),
    Option(
        "--salt",
        "the same --seed in other words, of the same lengths at the same times; 'fresh' for new ones each run",
        "TEXT",
    ),
    Option(
        "--slo",
        "objectives such as ttft_p95<1s,itl_p95<100ms, or a preset such as mlperf-server; missed: exit code 3",
        "TERMS",
    ),
    Option("--results", "run directory (default: results/<utc>-<workload>-<label>)", "DIR"),
    Option("--label", "a name for this run, in its directory's name, its metrics and its report", "NAME"),
    Option("--baseline", "compare with this baseline or run at the end; worse makes exit code 3", "NAME|FILE"),
    Option("--no-report", "leave out report.html (python -m exporters report makes it later)", switch=True),
    Option(
        "--gate",
        "thresholds that decide, such as ttft_p99<1s,throughput>900 (default: the workload's, else the usual "
        "metrics against --baseline); one that is broken makes exit code 3",
        "TERMS",
    ),
    Option("--save-baseline", "keep this run as a baseline of that name", "NAME"),
    Option("--records", "how many request records to keep: all, sample:RATE (0 to 1) or none", "WHICH"),
    Option("--trace", "trace file to replay, for workloads that replay one", "FILE"),
    Option("--time-scale", "pace of a trace: 10 is ten times as fast (default 1)", "X"),
    Option("--tokenizer", "tokenizer.json, or its directory, for exact prompt lengths without /tokenize", "PATH"),
    Option("--request-timeout", "seconds a request may take in all (default 600)", "S"),
    Option("--first-token-timeout", "seconds until the first token (default: no limit of its own)", "S"),
    Option("--idle-timeout", "seconds between two pieces of an answer (default: no limit of its own)", "S"),
    Option("--tls-ca", "PEM file of the authorities to trust instead of the system's", "FILE"),
    Option("--tls-insecure", "do not check the server's certificate", switch=True),
    Option("--no-stream", "ask for whole answers instead of streams (no TTFT, ITL, TPOT)", switch=True),
    Option("--retries", "times a request is sent again after a refusal or a broken connection (default 0)", "N"),
    Option("--save-outputs", "keep the answers' text, in outputs/ of the run directory", switch=True),
    Option("--extra-body", "JSON object merged into every request body", "JSON"),
    Option("--clock", "what tells an event's time", choices=("auto", "wire", "kernel", "user"), default="auto"),
    Option("--ring-packets", "packets that the wire clock's ring holds between two looks (default 65536)", "N"),
    Option("--itl-events", "fire a request event for every gap too (costly; see README)", switch=True),
    Option("--prometheus-port", "serve /metrics here too (the web UI has it)", "PORT", in_web_form=False),
    Option("--api-key-file", "file that holds the API key (else OPENAI_API_KEY)", "FILE", in_web_form=False),
)

_EXIT_CODES = (
    "LLM serving: streams, timed truly. Exit codes: 0 good, 1 requests failed, 2 bad input, 3 an objective missed or a "
    "regression, 4 not valid (the client was saturated, or too few requests); of several the first of 2, 4, 3, 1."
)


@dataclass(slots=True)
class Entry:
    """What a locustfile decides for whoever starts it; `endpoint` None leaves it to the workload's classes."""

    workload: str = "chat-short"
    arrival: str = AS_WORKLOAD
    endpoint: str | None = None


ENTRY = Entry()
"""Set by `completions.py`, `responses.py`, `replay.py` when Locust imports them, before it reads its command line."""


def add_options(parser: Any) -> None:
    """Adds all options to Locust's parser."""
    group = parser.add_argument_group("Tailgate", _EXIT_CODES)
    entry_defaults = {"workload": ENTRY.workload, "arrival": ENTRY.arrival}
    for option in OPTIONS:
        common: dict[str, Any] = {"help": option.help, "env_var": option.env_var}
        if option.switch:
            action = group.add_argument(option.flag, action="store_true", default=False, **common)
        else:
            default = entry_defaults.get(option.dest, option.default)
            action = group.add_argument(
                option.flag, default=default, choices=option.choices, metavar=option.metavar, **common
            )
        # Locust's parser takes this as an argument; its groups do not, and read it from the action.
        action.include_in_web_ui = option.in_web_form
