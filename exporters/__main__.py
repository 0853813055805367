"""The command: `python -m exporters --help`."""

from __future__ import annotations

import argparse
import contextlib
import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from exporters.run_store import Run, recover
from exporters.summary import exit_code
from tailgate.command_line import Parser
from tailgate.exits import BadInput, Exit, run_command, worst
from tailgate.thresholds import parse_gate

EPILOG = "Exit codes: 0 good, 1 requests failed, 2 bad input, 3 a regression, 4 not valid or not comparable."
GATE_HELP = (
    "what decides: thresholds like ttft_p99<1s,throughput_drop<20%%,ttft_p95_rise<10%%,goodput_share>95%%, and metrics "
    "that must not be worse, like itl_p95 (default: the workload's gate, else the usual metrics)"
)


def main(argv: Sequence[str] | None = None) -> int:
    """Runs the command and returns its exit code."""
    arguments = _parser().parse_args(argv)
    return int(arguments.do(arguments))


def _parser() -> argparse.ArgumentParser:
    parser = Parser(prog="python -m exporters", description="What runs measured, judged.", epilog=EPILOG)
    commands = parser.add_subparsers(required=True, metavar="COMMAND")

    summary = commands.add_parser("summary", help="a run's figures", epilog=EPILOG)
    summary.add_argument("run", metavar="RUN", help="a run directory")
    summary.add_argument("--json", action="store_true", help="print summary.json's content")
    summary.set_defaults(do=_summary)

    compare = commands.add_parser(
        "compare",
        help="a verdict on two sides",
        description="Compares BASE with RUN; several runs a side (comma-separated, or --base and --run) are repeats.",
        epilog=EPILOG,
    )
    compare.add_argument(
        "pair", metavar="BASE RUN", nargs="*", help="two run directories, comma lists, or a baseline's name"
    )
    _add_sides(compare)
    compare.add_argument(
        "--margin", type=_share, default=0.05, help="differences within it do not matter (default: 5%%)"
    )
    compare.add_argument("--gate", metavar="TERMS", help=GATE_HELP)
    compare.add_argument("--force", action="store_true", help="compare what is not comparable, and say so")
    compare.add_argument("--junit", type=Path, metavar="FILE", help="write what the gate found as JUnit XML too")
    compare.add_argument("--markdown", type=Path, metavar="FILE", help="write it as Markdown for a pull request too")
    compare.add_argument(
        "--annotations",
        action="store_true",
        help="print GitHub's ::error, ::warning and ::notice lines too (with --json on standard error)",
    )
    compare.add_argument("--json", action="store_true", help="print the comparison as JSON")
    compare.set_defaults(do=_compare)

    report = commands.add_parser("report", help="one HTML file to show around", epilog=EPILOG)
    report.add_argument("runs", metavar="RUN", nargs="*", help="one run; or BASE and RUN, each a run or a comma list")
    _add_sides(report)
    report.add_argument("-o", "--output", type=Path, required=True, metavar="FILE", help=".html, or .md for Markdown")
    report.add_argument("--margin", type=_share, default=0.05, help="as in compare")
    report.add_argument("--gate", metavar="TERMS", help="as in compare")
    report.add_argument("--force", action="store_true", help="as in compare")
    report.add_argument("--json", action="store_true", help="print where the report is, as JSON")
    report.set_defaults(do=_report)

    recover_command = commands.add_parser("recover", help="make a run of what a crash left", epilog=EPILOG)
    recover_command.add_argument("directory", metavar="DIR", help="the run directory, its journals in it")
    recover_command.add_argument("--json", action="store_true", help="print the summary as JSON")
    recover_command.set_defaults(do=_recover)

    baseline = commands.add_parser("baseline", help="runs to compare with, small enough for git")
    actions = baseline.add_subparsers(required=True, metavar="save|list|show")
    save = actions.add_parser("save", help="keep a run as baselines/NAME.json")
    save.add_argument("run", metavar="RUN", help="a run directory, or a comma list of repeats")
    save.add_argument("name", metavar="NAME")
    save.add_argument("--directory", type=Path, default=Path("baselines"), help="default: baselines")
    save.add_argument("--json", action="store_true", help="print what was saved as JSON")
    save.set_defaults(do=_baseline_save)
    listing = actions.add_parser("list", help="what is kept")
    listing.add_argument("--directory", type=Path, default=Path("baselines"), help="default: baselines")
    listing.add_argument("--json", action="store_true", help="print the list as JSON")
    listing.set_defaults(do=_baseline_list)

    show = actions.add_parser("show", help="what one holds")
    show.add_argument("name", metavar="NAME")
    show.add_argument("--directory", type=Path, default=Path("baselines"), help="default: baselines")
    show.add_argument("--json", action="store_true", help="print it as JSON, without the histograms")
    show.set_defaults(do=_baseline_show)

    convert = commands.add_parser("convert", help="a run in another tool's format")
    convert.add_argument("run", metavar="RUN", help="a run directory; for vllm-sweep also a comma list of them")
    convert.add_argument("--to", choices=("vllm-bench", "vllm-sweep", "csv", "parquet"), required=True)
    convert.add_argument(
        "-o", "--output", type=Path, metavar="FILE", help="default: standard output (not for parquet, which is binary)"
    )
    convert.add_argument("--json", action="store_true", help="with -o print where the file is, else the table, as JSON")
    convert.set_defaults(do=_convert)

    serve = commands.add_parser("serve", help="a stored run's metrics for Prometheus", epilog=EPILOG)
    serve.add_argument("run", metavar="RUN", help="a run directory")
    serve.add_argument("--port", type=_port, required=True, help="0 takes a free one")
    serve.add_argument("--host", default="127.0.0.1", help="address to listen at (default: %(default)s)")
    serve.add_argument("--baseline", metavar="NAME|FILE", help="serve the ratios to this baseline or run as well")
    serve.add_argument("--json", action="store_true", help="print the address as JSON")
    serve.set_defaults(do=_serve)

    bring = commands.add_parser("import", help="a vllm bench serve result as a run; best with --save-detailed")
    bring.add_argument("file", metavar="FILE", type=Path)
    bring.add_argument("-o", "--output", type=Path, metavar="DIR", help="default: results/<the file's name>")
    bring.add_argument("--json", action="store_true", help="print the summary as JSON")
    bring.set_defaults(do=_import)
    return parser


def _add_sides(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--base", nargs="+", metavar="RUN", help="the baseline's runs (repeats)")
    parser.add_argument("--run", nargs="+", metavar="RUN", dest="candidate", help="the candidate's runs (repeats)")


def _summary(arguments: argparse.Namespace) -> int:
    from exporters.tables import summary_text

    run = Run.load(arguments.run)
    print(_json(run.summary) if arguments.json else summary_text(run))
    return exit_code(run.summary)


def _compare(arguments: argparse.Namespace) -> int:
    from exporters.compare import compare

    gate = parse_gate(arguments.gate) if arguments.gate is not None else None
    base, candidate = _sides(arguments, arguments.pair)
    found = compare(base, candidate, margin=arguments.margin, gate=gate, force=arguments.force)
    if arguments.junit:
        from exporters.formats import junit

        _write(arguments.junit, junit.dump(found, candidate[0].facts.workload), "--junit")
    if arguments.markdown:
        from exporters.formats import pull_request

        _write(arguments.markdown, pull_request.dump(found), "--markdown")
    print(_json(found.to_dict()) if arguments.json else found.text())
    if arguments.annotations:
        from exporters.formats import annotations

        print("\n".join(annotations.lines(found)), file=sys.stderr if arguments.json else sys.stdout)
    return found.exit_code


def _report(arguments: argparse.Namespace) -> int:
    from exporters.compare import compare
    from exporters.gate import exit_codes, gate_of, hold
    from exporters.report import write_markdown, write_report

    gate = parse_gate(arguments.gate) if arguments.gate is not None else None
    if arguments.output.suffix not in ("", ".html", ".htm", ".md"):
        raise BadInput(f"-o {arguments.output}: a report is HTML or Markdown", "end the name in .html or .md")
    write = write_markdown if arguments.output.suffix == ".md" else write_report
    if len(arguments.runs) == 1 and not (arguments.base or arguments.candidate):
        runs = [Run.load(name) for name in arguments.runs[0].split(",")]
        gate = gate or gate_of(runs[0].facts)
        write(arguments.output, runs, gate=gate)
        code = worst([exit_code(run.summary) for run in runs] + (exit_codes(hold(gate, runs)) if gate else []))
    else:
        base, candidate = _sides(arguments, arguments.runs)
        if not all(isinstance(run, Run) for run in candidate):
            raise BadInput(
                "a report is of runs; a stored baseline can only be what they are held against", "name a run"
            )
        found = compare(base, candidate, margin=arguments.margin, gate=gate, force=arguments.force)
        write(arguments.output, base, candidate, found)
        code = found.exit_code
    print(_json({"report": str(arguments.output)}) if arguments.json else f"report: {arguments.output}")
    return code


def _recover(arguments: argparse.Namespace) -> int:
    from exporters.tables import summary_text

    run = recover(arguments.directory)
    print(_json(run.summary) if arguments.json else summary_text(run))
    return exit_code(run.summary)


def _baseline_save(arguments: argparse.Namespace) -> int:
    from exporters import baseline

    path = baseline.save([Run.load(name) for name in arguments.run.split(",")], arguments.name, arguments.directory)
    size = path.stat().st_size
    print(_json({"baseline": str(path), "bytes": size}) if arguments.json else f"saved: {path} ({size / 1000:.0f} kB)")
    return Exit.GOOD


def _baseline_list(arguments: argparse.Namespace) -> int:
    from exporters import baseline

    kept = baseline.listing(arguments.directory)
    print(_json(kept) if arguments.json else baseline.listing_text(kept, arguments.directory))
    return Exit.GOOD


def _baseline_show(arguments: argparse.Namespace) -> int:
    from exporters import baseline

    runs = baseline.described(arguments.name, arguments.directory)
    print(_json(runs) if arguments.json else baseline.described_text(runs))
    return Exit.GOOD


def _convert(arguments: argparse.Namespace) -> int:
    from exporters.formats import csv_table, parquet, vllm_bench

    output = arguments.output
    if arguments.to == "vllm-sweep":
        text = vllm_bench.dump_sweep([Run.load(name) for name in arguments.run.split(",")])
        if output is None:
            sys.stdout.write(text)
            return Exit.GOOD
        # What is plotted is a folder, of this tool's own making.
        with contextlib.suppress(OSError):
            output.parent.mkdir(parents=True, exist_ok=True)
        _write(output, text, "-o")
        print(_json({"file": str(output)}) if arguments.json else f"wrote {output}")
        return Exit.GOOD
    run = Run.load(arguments.run)
    dump = vllm_bench.dump if arguments.to == "vllm-bench" else csv_table.dump
    if output is None:
        if arguments.to == "parquet":
            raise BadInput("a Parquet file is no text for the screen", "name it with -o FILE")
        # What vllm bench writes is JSON as it is.
        as_json = arguments.json and arguments.to == "csv"
        sys.stdout.write(f"{_json(csv_table.rows(run))}\n" if as_json else dump(run))
        return Exit.GOOD
    if arguments.to == "parquet":
        parquet.write(run, output)
    else:
        _write(output, dump(run), "-o")
    print(_json({"file": str(output)}) if arguments.json else f"wrote {output}")
    return Exit.GOOD


def _serve(arguments: argparse.Namespace) -> int:
    from exporters.compare import compare
    from exporters.prometheus import RunMetrics
    from exporters.serve import serve

    run = Run.load(arguments.run)
    metrics = RunMetrics.of(run)
    if arguments.baseline:
        found = compare(_load(arguments.baseline), [run])
        if found.refused:
            raise BadInput(f"--baseline {arguments.baseline}: {'; '.join(found.refusals)}", "name one that compares")
        metrics.set_comparison(found)

    def ready(address: str) -> None:
        print(_json({"metrics": address}) if arguments.json else f"metrics: {address} (Ctrl-C ends)", flush=True)

    serve(metrics, arguments.host, arguments.port, ready)
    return Exit.GOOD


def _import(arguments: argparse.Namespace) -> int:
    from exporters.formats import vllm_bench
    from exporters.tables import summary_text

    run = vllm_bench.load(arguments.file, arguments.output or Path("results") / arguments.file.stem)
    print(_json(run.summary) if arguments.json else f"run: {run.path}\n\n{summary_text(run)}")
    return exit_code(run.summary)


def _sides(arguments: argparse.Namespace, pair: Sequence[str]) -> tuple[list[Any], list[Any]]:
    """The runs of both sides, from the positional pair or from --base and --run."""
    if arguments.base or arguments.candidate:
        if pair or not (arguments.base and arguments.candidate):
            raise BadInput("name both sides one way", "BASE RUN, or --base RUN… --run RUN…")
        sides = arguments.base, arguments.candidate
    elif len(pair) == 2:
        sides = [pair[0]], [pair[1]]
    else:
        raise BadInput(f"expected BASE and RUN, got {len(pair)} of them", "repeats go with commas, or --base … --run …")
    base, candidate = (
        [one for word in side for name in word.split(",") if name for one in _load(name)] for side in sides
    )
    return base, candidate


def _load(name: str) -> list[Any]:
    """A run directory, or a stored baseline by file or by name."""
    if Path(name).is_dir():
        return [Run.load(name)]
    from exporters import baseline

    stored = baseline.find(name)
    if stored is not None:
        return list(baseline.load(stored))
    raise BadInput(
        f"'{name}' is neither a run directory nor a baseline in {baseline.DIRECTORY}", baseline.known_instead(name)
    )


def _share(text: str) -> float:
    try:
        value = float(text.removesuffix("%")) / (100 if text.endswith("%") else 1)
    except ValueError:
        raise argparse.ArgumentTypeError(f"'{text}' is no share; write 0.05 or 5%") from None
    if not 0 < value < 1:
        raise argparse.ArgumentTypeError(f"'{text}' is not between 0 and 100%; write 0.05 or 5%")
    return value


def _port(text: str) -> int:
    if not text.isdigit() or int(text) > 65535:
        raise argparse.ArgumentTypeError(f"'{text}' is no port; give 0 to 65535")
    return int(text)


def _write(path: Path, text: str, flag: str) -> None:
    try:
        path.write_text(text, encoding="utf-8")
    except OSError as error:
        raise BadInput(f"{path}: {error.strerror}", f"name a file that can be written with {flag}") from None


def _json(value: Any) -> str:
    return json.dumps(value, indent=2)


if __name__ == "__main__":
    sys.exit(run_command(main, "exporters"))
