"""`python -m vllm_launch`: check, show and diff launch configs, serve one, run an experiment, search, explain."""

from __future__ import annotations

import argparse
import contextlib
import json
import shlex
import sys
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from tailgate.command_line import Parser
from tailgate.exits import BadInput, Exit, run_command
from vllm_launch import effect, real_parser
from vllm_launch.config import LaunchConfig, load_config, names
from vllm_launch.engine.commands import LAUNCHED, command, require_launchable
from vllm_launch.engine.launch import LaunchFailed, launch
from vllm_launch.engine.processes import tidy_on_signals
from vllm_launch.experiments.file import load_experiment
from vllm_launch.experiments.plan import plan, plan_text, require_runnable

_CONFIG_HELP = "launch config: a name (see vllm_launch/configs/) or a path ending in .yaml"


def main(argv: Sequence[str] | None = None) -> int:
    """Runs one command; returns its exit code. Raises `BadInput`."""
    args = _parser().parse_args(argv)
    action: Callable[[argparse.Namespace], int] = args.action
    try:
        return action(args)
    except LaunchFailed as error:
        for line in error.log_tail:
            print(f"  engine| {line}", file=sys.stderr)
        raise


def _parser() -> argparse.ArgumentParser:
    parser = Parser(prog="python -m vllm_launch", description=__doc__)
    commands = parser.add_subparsers(required=True, metavar="COMMAND")

    def add(name: str, action: Callable[[argparse.Namespace], int], text: str) -> argparse.ArgumentParser:
        made = commands.add_parser(name, help=text, description=text)
        made.set_defaults(action=action)
        made.add_argument("--json", action="store_true", help="print JSON")
        return made

    add("list", _list, "the launch configs that come with the suite")
    check = add("check", _check, "check a config against vLLM's own flags")
    check.add_argument("--python", metavar="PATH", help="interpreter of the environment whose vLLM is asked")
    check.add_argument("--recorded", action="store_true", help="ask no installed vLLM, only the recorded flag list")
    show = add("show", _show, "print the exact command and environment of a config")
    for one in (check, show):
        one.add_argument("config", metavar="CONFIG", help=_CONFIG_HELP)
        one.add_argument("--vllm", metavar="VERSION", help="vLLM version whose flags are meant (default: the config's)")
    show.add_argument("--engine", choices=LAUNCHED, default="vllm")
    diff = add("diff", _diff, "what differs in effect between two configs, and between each and its device's defaults")
    diff.add_argument("before", metavar="A", help=_CONFIG_HELP)
    diff.add_argument("after", metavar="B", help=_CONFIG_HELP)
    serve = add("serve", _serve, "serve a config in the foreground until Ctrl-C")
    serve.add_argument("config", metavar="CONFIG", help=_CONFIG_HELP)
    serve.add_argument("--engine", choices=LAUNCHED, default="vllm")
    serve.add_argument("--host", default="127.0.0.1")
    serve.add_argument("--port", type=_port, default=8000)
    serve.add_argument("--python", metavar="PATH", help="interpreter of the environment that has vLLM")
    serve.add_argument("--step-times", type=Path, metavar="FILE", help="the embedded engine's, as `fit` writes them")
    attach = add("attach", _attach, "what a server that runs already says of itself; with -o, watch it")
    attach.add_argument("server", metavar="URL", help="its address, or a launch config with 'url:'")
    attach.add_argument("-o", "--output", type=Path, metavar="DIR", help="write its metrics there until Ctrl-C")
    experiment = add(
        "experiment", _experiment, "run an experiment: compare, ablation or sweep, with a verdict or table and a report"
    )
    experiment.add_argument("file", metavar="FILE", help="experiment file, or a name (see vllm_launch/experiments/)")
    experiment.add_argument("--results", type=Path, default=Path("results"), metavar="DIR")
    experiment.add_argument("--dry-run", action="store_true", help="say what would run, and for how long")
    experiment.add_argument("--resume", type=Path, metavar="DIR", help="go on with an experiment that was broken off")
    experiment.add_argument("--python", metavar="PATH", help="interpreter of the environment that has vLLM")
    fit = add("fit", _fit, "find step times for the embedded engine in runs of one real server")
    fit.add_argument("runs", nargs="+", metavar="RUN", help="run directories, all of one launch")
    fit.add_argument("-o", "--output", type=Path, required=True, metavar="FILE", help="write them there")
    explain = add("explain", _explain, "why a run's figures are what they are, and which flag to try next")
    explain.add_argument("run", metavar="RUN", help="a run directory")
    search = add("search", _search, "the highest load that meets an SLO, for one config or the best of a flag space")
    search.add_argument("file", metavar="FILE", help="search file, or a name (see vllm_launch/experiments/)")
    search.add_argument("--results", type=Path, default=Path("results"), metavar="DIR")
    search.add_argument("--dry-run", action="store_true", help="say what would run, and for how long at most")
    search.add_argument("--virtual", action="store_true", help="all of it in virtual time, on the embedded engine")
    search.add_argument("--resume", type=Path, metavar="DIR", help="go on with a search that was broken off")
    search.add_argument("--python", metavar="PATH", help="interpreter of the environment that has vLLM")
    return parser


def _port(text: str) -> int:
    if not text.isdecimal() or not 0 < int(text) < 65536:
        raise argparse.ArgumentTypeError(f"'{text}' is no port, give one between 1 and 65535")
    return int(text)


def _list(args: argparse.Namespace) -> int:
    configs = [load_config(name) for name in names()]
    if args.json:
        _print([{"name": c.name, "about": c.about, "model": c.model, "device": c.device} for c in configs])
        return Exit.GOOD
    width = max(len(config.name) for config in configs)
    for config in configs:
        print(f"{config.name:<{width}}  {config.about}")
    return Exit.GOOD


def _check(args: argparse.Namespace) -> int:
    config = _launchable(args)
    effect.effective(config)
    idle = effect.without_effect(config)
    by = f"the recorded flags of vLLM {config.version}"
    asked = None if args.recorded or args.vllm else real_parser.installed(config, args.python)
    if args.python and not asked:
        raise BadInput(f"there is no Python at {args.python}", "name the environment that has vLLM with --python")
    if asked:
        answer = real_parser.ask(asked, [config])
        by = f"the parser of vLLM {answer.version} installed here"
        if complaint := answer.complaints[0]:
            raise BadInput(
                f"{config.path}: {by} refuses it: {complaint}", "mend that flag, or serve it with another vLLM"
            )
    if args.json:
        _print({"config": config.name, "vllm": config.version, "ok": True, "checked_by": by, "no_effect": idle})
    else:
        print(f"{config.name}: ok for vLLM {config.version} (by {by})")
        for line in idle:
            print(f"  {line}")
    return Exit.GOOD


def _launchable(args: argparse.Namespace) -> LaunchConfig:
    config = load_config(args.config, version=args.vllm)
    if config.attached_only:
        raise BadInput(
            f"{config.name}: a server that runs already is not launched", "see: python -m vllm_launch attach"
        )
    return config


def _show(args: argparse.Namespace) -> int:
    config = _launchable(args)
    asked = command(config, args.engine, host="127.0.0.1", port=8000)
    env = {name: config.public_env().get(name, value) for name, value in asked.env.items()}
    changes = _changes(effect.from_defaults(config))
    if args.json:
        _print({"config": config.name, "argv": asked.argv, "env": env, "from_defaults": changes})
        return Exit.GOOD
    print(" \\\n  ".join([*(f"{name}={shlex.quote(value)}" for name, value in env.items()), shlex.join(asked.argv)]))
    _print_changes(f"\nagainst the defaults on {config.device}", changes)
    return Exit.GOOD


def _diff(args: argparse.Namespace) -> int:
    before, after = load_config(args.before), load_config(args.after)
    between = _changes(effect.differences(before, after))
    sides = {config.name: config for config in (before, after)}
    if args.json:
        _print(
            {
                "between": between,
                "from_defaults": {name: _changes(effect.from_defaults(c)) for name, c in sides.items()},
                "no_effect": {name: effect.without_effect(c) for name, c in sides.items()},
            }
        )
        return Exit.GOOD
    _print_changes(f"{before.name} -> {after.name}", between)
    for name, config in sides.items():
        _print_changes(f"\n{name} against the defaults on {config.device}", _changes(effect.from_defaults(config)))
        for line in effect.without_effect(config):
            print(f"  {line}")
    return Exit.GOOD


def _serve(args: argparse.Namespace) -> int:
    config = replace(load_config(args.config), step_times=args.step_times)
    if args.step_times and args.engine != "simulated":
        raise BadInput(f"--step-times: the {args.engine} engine has its own", "add --engine simulated")
    if args.engine == "simulated":
        require_launchable(config, args.engine)
        _serve_simulated(config, args.host, args.port)
        return Exit.GOOD
    # Being told to end is how serving ends well.
    with (
        contextlib.suppress(KeyboardInterrupt, SystemExit),
        tidy_on_signals(),
        launch(config, args.engine, log=None, host=args.host, port=args.port, python=args.python, warm=False) as engine,
    ):
        print(f"serving {engine.model} at {engine.url} (ready after {engine.started_in_s:.1f} s); Ctrl-C ends it")
        sys.stdout.flush()
        while engine.child is not None and engine.child.wait(3600.0) is None:
            pass
        engine.check()
    return Exit.GOOD


def _attach(args: argparse.Namespace) -> int:
    from vllm_launch.engine.attach import described, described_text, observe

    config = load_config(args.server)
    facts = described(config)
    _print(facts) if args.json else print(described_text(facts), flush=True)
    if args.output:
        with tidy_on_signals():
            observe(config, args.output, say=lambda text: print(text, file=sys.stderr, flush=True))
    return Exit.GOOD


def _serve_simulated(config: LaunchConfig, host: str, port: int) -> None:
    from vllm_launch.engine import embedded
    from vllm_launch.simulated.server import serve

    settings, notes = embedded.settings(config)
    for note in notes:
        print(f"note: {note}", file=sys.stderr)
    serve(settings, host, port)


def _experiment(args: argparse.Namespace) -> int:
    experiment = load_experiment(args.file)
    require_runnable(experiment, args.python)
    if not _is_to_run(args, plan(experiment, args.resume), plan_text):
        return Exit.GOOD
    # Plots and statistics take a second to load, which a plan need not wait for.
    from vllm_launch.experiments.run import run_experiment

    with tidy_on_signals():
        result = run_experiment(
            experiment,
            args.results,
            python=args.python,
            resume=args.resume,
            say=(lambda text: None) if args.json else print,
        )
    if args.json:
        _print(result.to_dict())
    return result.exit_code


def _fit(args: argparse.Namespace) -> int:
    from exporters.run import Run
    from vllm_launch.engine import embedded

    table = embedded.fitted([Run.load(run) for run in args.runs])
    embedded.write_step_times(table, args.output)
    if args.json:
        _print({"file": str(args.output), "source": table.source, "error": table.error})
        return Exit.GOOD
    step, sequence = 1e3 * table.overhead.per_step_s, 1e6 * table.overhead.per_sequence_s
    print(
        f"{args.output}: step times of {table.source}: {step:.2f} ms a step, {sequence:.0f} us a sequence, "
        f"{1e6 * table.per_token_s:.0f} us a prompt token, {1e3 * table.overhead.per_request_s:.0f} ms a request; "
        f"replayed, these runs are missed by {table.error:.0%} on average"
    )
    return Exit.GOOD


def _explain(args: argparse.Namespace) -> int:
    from exporters.explain import explain, findings_text
    from exporters.run import Run

    run = Run.load(args.run)
    found = explain(run)
    if args.json:
        _print({"run": str(args.run), "simulated": run.facts.simulated, "findings": [f.to_dict() for f in found]})
    else:
        print(findings_text(run, found))
    return Exit.GOOD


def _search(args: argparse.Namespace) -> int:
    from vllm_launch.search.file import load_search
    from vllm_launch.search.plan import require_searchable_engines, search_plan, search_plan_text

    search = load_search(args.file)
    require_searchable_engines(search, args.python, virtual=args.virtual)
    if not _is_to_run(args, search_plan(search, virtual=args.virtual), search_plan_text):
        return Exit.GOOD
    from vllm_launch.search.run import run_search

    with tidy_on_signals():
        result = run_search(
            search,
            args.results,
            python=args.python,
            resume=args.resume,
            virtual=args.virtual,
            say=lambda text: print(text, file=sys.stderr, flush=True),
        )
    _print(result.to_dict()) if args.json else print(result.text())
    return result.exit_code


def _is_to_run(args: argparse.Namespace, planned: dict[str, Any], text: Callable[[dict[str, Any]], str]) -> bool:
    """Shows a plan: all that a dry run does, and with --json nothing but the result is shown of a real one."""
    if not args.json:
        print(text(planned) if args.dry_run else f"{text(planned)}\n", flush=True)
    elif args.dry_run:
        _print(planned)
    return not args.dry_run


def _changes(found: Sequence[effect.Difference]) -> list[dict[str, Any]]:
    return [{"flag": d.flag, "before": d.before, "after": d.after, "note": d.note} for d in found]


def _print_changes(title: str, changes: list[dict[str, Any]]) -> None:
    print(f"{title}:")
    for change in changes:
        note = f"  ({change['note'].strip()})" if change["note"] else ""
        print(f"  {change['flag']}: {effect.shown(change['before'])} -> {effect.shown(change['after'])}{note}")
    if not changes:
        print("  no difference in effect")


def _print(value: Any) -> None:
    print(json.dumps(value, indent=2, ensure_ascii=False))


if __name__ == "__main__":
    sys.exit(run_command(main, "vllm_launch"))
