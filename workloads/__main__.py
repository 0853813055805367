"""`python -m workloads`: lists, shows, checks and samples workloads, and exports their JSON Schema."""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path
from typing import Any

from tailgate.command_line import Parser
from tailgate.exits import Exit, run_command
from workloads.library import load_workload, preset_names
from workloads.plan import Plan, make_plan
from workloads.show import (
    describe,
    describe_arrivals,
    describe_trace,
    render,
    render_arrivals,
    render_request,
    render_trace,
)
from workloads.sources.choice import open_replayed
from workloads.spec import Workload
from workloads.tokenizer_file import TokenizerFile

_EPILOG = "Exit codes: 0 good, 2 bad input (one line names the file, the line, the key and the mend)."


def main(argv: list[str] | None = None) -> int:
    """Runs one subcommand; returns its exit code. Raises `BadInput` on a mistake of the user's."""
    arguments = _parser().parse_args(argv)
    return int(arguments.command(arguments))


def _parser() -> argparse.ArgumentParser:
    parser = Parser(prog="python -m workloads", description="What is sent, and when.", epilog=_EPILOG)
    commands = parser.add_subparsers(required=True, metavar="list | show | check | sample | schema")

    def command(name: str, function: Any, summary: str) -> argparse.ArgumentParser:
        sub = commands.add_parser(name, help=summary, description=summary)
        sub.set_defaults(command=function)
        sub.add_argument("--json", action="store_true", help="print JSON")
        return sub

    command("list", _list, "The presets, a line each.")
    show = command("show", _show, "A workload's classes, lengths and offered load as text.")
    check = command("check", _check, "Whether a workload file is sound; names line, key and mend where it is not.")
    sample = command("sample", _sample, "The first requests of a workload, as they would be sent.")
    command("schema", _schema, "The JSON Schema of workload files, for editors.")
    for sub in (show, sample):
        sub.add_argument(
            "workload",
            metavar="NAME",
            help="a preset, a YAML file, a grid's point (NAME:c16-i128-o256), or a run directory to replay",
        )
    check.add_argument("workload", metavar="FILE", help="a workload's YAML file (or a preset's name)")
    for sub in (show, check, sample):
        sub.add_argument("--trace", type=Path, metavar="FILE", help="the trace file of a workload that replays one")
    show.add_argument(
        "--seconds",
        type=_seconds,
        metavar="S",
        help="of arrivals that are drawn (default: a minute, all stages, or a wave)",
    )
    show.add_argument("--seed", type=_seed, default=0, metavar="N", help="of the arrivals that are drawn (default 0)")
    sample.add_argument("-n", type=_count, default=3, metavar="N", help="how many requests (default 3)")
    sample.add_argument("--seed", type=_seed, default=0, metavar="N", help="default 0")
    sample.add_argument("--salt", default="", help="changes every text and no length")
    sample.add_argument("--model", default="MODEL", help="the model's name in the bodies")
    sample.add_argument("--tokenizer", type=Path, metavar="PATH", help="tokenizer.json or its directory: exact lengths")
    return parser


def _list(arguments: argparse.Namespace) -> int:
    workloads = [load_workload(name) for name in preset_names()]
    if arguments.json:
        _print_json(
            [
                {
                    "name": item.name,
                    "description": item.description,
                    "points": len(item.grid.points()) if item.grid else 1,
                    "trace": item.trace.format if item.trace else None,
                }
                for item in workloads
            ]
        )
        return Exit.GOOD
    width = max(len(item.name) for item in workloads)
    for item in workloads:
        print(f"{item.name:{width}}  {item.description}")
    return Exit.GOOD


def _show(arguments: argparse.Namespace) -> int:
    workload = load_workload(arguments.workload)
    facts, text = describe(workload), render(workload)
    file = open_replayed(workload, arguments.trace)
    if file is not None:
        facts["trace"] = describe_trace(file, next(iter(workload.classes.values())))
        text += "\n" + render_trace(facts["trace"])
    if workload.arrival.open and workload.arrival.kind != "trace" and workload.trace is None:
        facts["arrivals"] = describe_arrivals(workload, arguments.seed, arguments.seconds)
        text += "\n" + render_arrivals(facts["arrivals"])
    if arguments.json:
        _print_json(facts)
    else:
        print(text)
    return Exit.GOOD


def _check(arguments: argparse.Namespace) -> int:
    workload = load_workload(arguments.workload)
    file = open_replayed(workload, arguments.trace)
    rows = file.length if file is not None else None
    if arguments.json:
        _print_json({"ok": True, "name": workload.name, "classes": list(workload.classes), "trace_rows": rows})
    else:
        count = len(workload.classes)
        trace = "" if rows is None else f"; the trace has {rows:,} rows, all sound"
        print(f"{arguments.workload}: good ({workload.name}, {count} {'class' if count == 1 else 'classes'}){trace}")
    return Exit.GOOD


def _sample(arguments: argparse.Namespace) -> int:
    plan = make_plan(
        load_workload(arguments.workload),
        seed=arguments.seed,
        model=arguments.model,
        counter=TokenizerFile(arguments.tokenizer) if arguments.tokenizer else None,
        salt=arguments.salt,
        trace=arguments.trace,
    )
    count = arguments.n if plan.length is None else min(arguments.n, plan.length)
    if arguments.json:
        _print_json([_request_json(plan, index) for index in range(count)])
        return Exit.GOOD
    for note in plan.notes:
        print(f"note: {note}")
    for index in range(count):
        print(render_request(plan, index))
    return Exit.GOOD


def _schema(arguments: argparse.Namespace) -> int:
    schema = Workload.model_json_schema(by_alias=True)
    _print_json({"$schema": "https://json-schema.org/draft/2020-12/schema", **schema})
    return Exit.GOOD


def _request_json(plan: Plan, index: int) -> dict[str, Any]:
    request = plan.request(index)
    return {
        "index": request.index,
        "class": request.request_class,
        "endpoint": request.endpoint,
        "prompt_tokens": request.prompt_tokens,
        "output_tokens": request.output_tokens,
        "shared_tokens": request.shared_tokens,
        "scheduled_s": request.scheduled_s,
        "body": json.loads(request.body),
    }


def _count(text: str) -> int:
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"'{text}' is no number of requests; give 1 or more")
    return int(text)


def _seed(text: str) -> int:
    if not text.isdecimal():
        raise argparse.ArgumentTypeError(f"'{text}' is no seed; give a whole number, 0 or more")
    return int(text)


def _seconds(text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = 0.0
    if not 0 < value <= 1e6:
        raise argparse.ArgumentTypeError(f"'{text}' is no length of time; give seconds above 0")
    return value


def _print_json(data: Any) -> None:
    print(json.dumps(data, ensure_ascii=False, indent=2))


if __name__ == "__main__":
    sys.exit(run_command(main, "workloads"))
