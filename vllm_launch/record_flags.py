"""Makes a recorded flag list (`flag_lists/VERSION.json`) from what vLLM itself says of its flags.

    vllm serve --help=all | .venv-vllm/bin/python -m vllm_launch.record_flags --version 0.32 --parser
    vllm serve --help=all | python -m vllm_launch.record_flags --version 0.33 --types-from 0.32

Help text names types only through choices and defaults. `--parser` asks the parser of the vLLM installed in the running
environment for them; without one, what help leaves open is taken from another version's list.
Recorded are facts only (names, types, choices, defaults), none of the help's prose.
"""

from __future__ import annotations

import argparse
import ast
import json
import re
import sys
from pathlib import Path
from typing import Any

from tailgate.command_line import Parser
from tailgate.exits import run_command

LISTS = Path(__file__).parent / "flag_lists"
_ENTRY = re.compile(r"^  (-\S.*)$")
_OPTION = re.compile(r"(--[a-z0-9][a-z0-9-]*|-[A-Za-z][A-Za-z-]*)(?: (\{[^}]*\}|\[[^\]]*\]|[A-Z][A-Z0-9_]*))?")
_NEGATIONS = (("enable-", "disable-"), ("disable-", "enable-"), ("", "no-"))


def parse_help(text: str) -> dict[str, dict[str, Any]]:
    """The flags that a `--help=all` page lists, by canonical name: its first long name without dashes.

    Keys of an entry, where they apply: `aliases`, `negative` (the name that switches a boolean off), `type`
    (bool, int, float, str, json, size), `many`, `choices`, `open_choices` (plugins may add some), `default`.
    """
    flags: dict[str, dict[str, Any]] = {}
    lines = text.splitlines()
    starts = [number for number, line in enumerate(lines) if _ENTRY.match(line)]
    for start, end in zip(starts, [*starts[1:], len(lines)], strict=True):
        body = []
        for line in lines[start + 1 : end]:
            if line and not line.startswith("   "):
                break
            body.append(line.strip())
        name, entry = _entry(lines[start].strip(), body)
        if name and name not in ("help", "version"):
            flags[name] = entry
    return flags


def _entry(head: str, body: list[str]) -> tuple[str, dict[str, Any]]:
    signature, _, inline = head.partition("  ")
    signature, open_choices, _ = signature.partition(" or name registered in ")
    prose = " ".join([inline.strip(), *body])
    names: list[str] = []
    value = ""
    for match in _OPTION.finditer(signature):
        names.append(match[1])
        value = match[2] or value
    long_names = [name[2:] for name in names if name.startswith("--")]
    if not long_names:
        return "", {}
    entry: dict[str, Any] = {}
    negative = _negative(long_names)
    aliases = [name for name in long_names[1:] if name != negative] + [n[1:] for n in names if not n.startswith("--")]
    if aliases:
        entry["aliases"] = sorted(set(aliases))
    default = _default(prose)
    if not value:
        entry["type"] = "bool"
        if negative:
            entry["negative"] = negative
    elif value.startswith(("{", "[")):
        choices = re.findall(r"[\w.+-]+", value)
        entry["choices"] = [choice for choice in choices if choice != "None"]
        entry["type"] = "int" if all(choice.isdigit() for choice in entry["choices"]) else "str"
        if open_choices:
            entry["open_choices"] = True
    elif "human-readable" in prose:
        entry["type"] = "size"
    elif "valid JSON string" in prose or isinstance(default, dict):
        entry["type"] = "json"
    elif isinstance(default, bool | int | float):
        entry["type"] = type(default).__name__
    if re.search(r"[A-Z_]+ \[[A-Z_]+ \.\.\.\]", signature):
        entry["many"] = True
    if default is not None:
        entry["default"] = default
    return long_names[0], entry


def _negative(long_names: list[str]) -> str | None:
    first = long_names[0]
    for prefix, opposite in _NEGATIONS:
        twin = opposite + first.removeprefix(prefix) if first.startswith(prefix) else None
        if twin in long_names[1:]:
            return twin
    return "no-" + first if "no-" + first in long_names else None


def _default(prose: str) -> Any:
    found = re.search(r"\(default: (?!.*\(default: )(.*)\)\s*$", prose)
    if not found:
        return None
    text = found[1]
    try:
        value = ast.literal_eval(text)
    except (ValueError, SyntaxError):
        return text if re.fullmatch(r"[\w./:-]+", text) else None
    return value if isinstance(value, bool | int | float | str | list) else None


def types_of(parser: argparse.ArgumentParser) -> dict[str, str]:
    """Each flag's value type, asked of a real argument parser."""
    return {
        name[2:]: _type_of(action)
        for action in parser._actions
        for name in action.option_strings
        if name.startswith("--")
    }


def _type_of(action: argparse.Action) -> str:
    if action.nargs == 0:
        return "bool"
    convert: Any = action.type
    name = getattr(convert, "__qualname__", "")
    if name.startswith("optional_type"):
        inner = [cell.cell_contents for cell in convert.__closure__ or () if callable(cell.cell_contents)]
        convert, name = (inner[0], getattr(inner[0], "__qualname__", "")) if inner else (None, "")
    if convert in (int, float):
        return str(convert.__name__)
    if name.startswith("human_readable"):
        return "size"
    return "json" if any(word in name for word in ("loads", "parse_type", "parse_dataclass", "dict")) else "str"


def main() -> int:
    """Reads help text on standard input and writes the list."""
    parser = Parser(
        prog="python -m vllm_launch.record_flags", description="Record vLLM's flags from its --help=all on stdin."
    )
    parser.add_argument("--version", required=True, help="vLLM version without the patch level, such as 0.33")
    parser.add_argument("--parser", action="store_true", help="types from the vLLM installed in this environment")
    parser.add_argument("--types-from", help="version whose recorded list fills the types that help leaves open")
    options = parser.parse_args()
    flags = parse_help(sys.stdin.read())
    if options.parser:
        from vllm.entrypoints.launchers.cli_args import make_arg_parser  # type: ignore[import-not-found]
        from vllm.utils.argparse_utils import FlexibleArgumentParser  # type: ignore[import-not-found]

        for name, kind in types_of(make_arg_parser(FlexibleArgumentParser())).items():
            if name in flags:
                flags[name]["type"] = kind
    known: dict[str, dict[str, Any]] = {}
    if options.types_from:
        known = json.loads((LISTS / f"{options.types_from}.json").read_text(encoding="utf-8"))["flags"]
    for name, entry in flags.items():
        entry.setdefault("type", known.get(name, {}).get("type", "str"))
    rows = (f"  {json.dumps(name)}: {json.dumps(entry, sort_keys=True)}" for name, entry in sorted(flags.items()))
    text = f'{{"vllm": "{options.version}", "flags": {{\n' + ",\n".join(rows) + "\n}}\n"
    (LISTS / f"{options.version}.json").write_text(text, encoding="utf-8")
    print(f"{len(flags)} flags of vLLM {options.version} recorded")
    return 0


if __name__ == "__main__":
    sys.exit(run_command(main, "record_flags"))
