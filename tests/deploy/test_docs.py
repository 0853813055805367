"""Every command and option that README.md and docs/ name exists: Locust's, ours, vLLM's, make's, kubectl's files."""

from __future__ import annotations

import argparse
import importlib
import re
import shlex
from collections.abc import Iterator
from functools import cache
from itertools import pairwise
from pathlib import Path

import pytest
import yaml

from tests.support.deployed import locust_options
from tests.support.locust_runs import ROOT
from vllm_launch.flags import flag_list, misbeliefs, versions

PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
_FENCE = re.compile(r"^```(\w*)\n(.*?)^```", re.MULTILINE | re.DOTALL)
_INLINE = re.compile(r"`([^`\n]+)`")
_ASSIGNMENT = re.compile(r"^[A-Z][A-Z0-9_]*=")
_OPTION = re.compile(r"--[a-z][a-z0-9-]*")
# Other programs' options that the pages name.
_THEIRS = {
    *("--build-arg", "--profile", "--scale", "--from-file", "--from-literal", "--namespace", "--cap-add", "--gpus"),
    *("--follow", "--timeout", "--for", "--rm", "--shm-size", "--ipc", "--detach", "--volumes", "--all", "--no-deps"),
    *("--overwrite", "--save-detailed", "--request-rate", "--dry-run", "--help", "--json", "--user", "--network"),
}
_COMMAND = re.compile(r"^(?:locust|python -m \w+|make|docker|kubectl)\b")


def commands(text: str) -> Iterator[list[str]]:
    """The words of each command that a page shows, in a block or in a line."""
    spans = [block for language, block in _FENCE.findall(text) if language in ("sh", "bash", "console", "shell", "")]
    spans += [span for span in _INLINE.findall(_FENCE.sub("", text)) if _COMMAND.match(span)]
    for span in spans:
        for line in re.sub(r"\\\n\s*", " ", span).splitlines():
            for part in re.split(r"&&|;|\|\s", line.strip().removeprefix("$ ")):
                try:
                    words = shlex.split(part, comments=True)
                except ValueError:
                    continue
                while words and _ASSIGNMENT.match(words[0]):
                    words = words[1:]
                if words:
                    yield words


@cache
def subcommands(module: str) -> dict[str, set[str]]:
    """Options by subcommand (like "baseline save"), "" for the command's own."""
    found: dict[str, set[str]] = {}

    def walk(parser: argparse.ArgumentParser, name: str) -> None:
        found[name] = {flag for action in parser._actions for flag in action.option_strings}
        for action in parser._actions:
            if isinstance(action, argparse._SubParsersAction):
                for word, below in action.choices.items():
                    walk(below, f"{name} {word}".strip())

    walk(importlib.import_module(f"{module}.__main__")._parser(), "")
    return found


def faults(words: list[str]) -> Iterator[str]:
    """What of a command does not exist."""
    options = [word.split("=")[0] for word in words if _OPTION.fullmatch(word.split("=")[0])]
    if words[0] == "make":
        targets = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
        yield from (
            f"make has no {word}" for word in words[1:] if re.fullmatch("[a-z-]+", word) and word not in targets
        )
    elif words[0] == "locust":
        yield from (f"locust has no {option}" for option in options if option not in locust_options()["flags"])
        for word in words:
            if word.startswith("locustfiles/"):
                yield from (f"no file {one}" for one in word.split(",") if not (ROOT / one).is_file())
    elif words[:2] == ["python", "-m"] and words[2] in ("exporters", "vllm_launch", "workloads"):
        known = subcommands(words[2])
        rest = [word for word in words[3:] if not word.startswith("-")]
        name = next((n for n in (" ".join(rest[:2]), " ".join(rest[:1])) if n in known), None)
        if name is None:
            if rest and rest[0] not in ("…", "...", "COMMAND"):
                yield f"{words[2]} has no command {rest[0]}"
            return
        yield from (f"{words[2]} {name} has no {option}" for option in options if option not in known[name])
    elif words[:3] == ["python", "-m", "benchmarks"]:
        from benchmarks.__main__ import PARTS

        parts = [word for word in words[3:] if re.fullmatch("[a-z_]+", word)]
        yield from (f"benchmarks has no part {part}" for part in parts if part not in PARTS)
    elif words[:2] == ["python", "-m"] and "." in words[2]:
        if importlib.util.find_spec(words[2]) is None:
            yield f"no module {words[2]}"
    elif words[:2] == ["docker", "compose"]:
        compose = yaml.safe_load((ROOT / "docker-compose.yml").read_text())
        profiles = {name for service in compose["services"].values() for name in service.get("profiles", ())}
        for flag, value in pairwise(words):
            if flag == "--profile" and value not in profiles:
                yield f"compose has no profile {value}"
            if flag == "--scale" and value.split("=")[0] not in compose["services"]:
                yield f"compose has no service {value}"
    elif words[0] == "kubectl":
        for word in words:
            if word.startswith("k8s/") and not (ROOT / word).exists():
                yield f"nothing at {word}"


@cache
def every_option() -> frozenset[str]:
    known = set(locust_options()["flags"]) | _THEIRS
    for module in ("exporters", "vllm_launch", "workloads"):
        known |= set().union(*subcommands(module).values())
    for version in versions():
        flags = flag_list(version)
        known |= {f"--{name}" for name in (*flags.names, *flags.negatives)}
    known |= {f"--{name}" for name in misbeliefs()}
    for path in (*(ROOT / "benchmarks").glob("*.py"), *(ROOT / "vllm_launch").rglob("*.py")):
        known |= set(re.findall(r'"(--[a-z][a-z0-9-]*)"', path.read_text()))
    return frozenset(known)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_commands_exist(page: Path) -> None:
    assert [fault for words in commands(page.read_text()) for fault in faults(words)] == []


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_options_exist(page: Path) -> None:
    spans = _INLINE.findall(_FENCE.sub("", page.read_text()))
    named = {option for span in spans for option in _OPTION.findall(span)}
    assert sorted(named - every_option()) == []


def lost_links(page: Path, text: str) -> list[str]:
    """Links to files, and to headings in pages, that lead nowhere."""
    lost = []
    for link in re.findall(r"\]\(([^)]+)\)", text):
        file, _, anchor = link.partition("#")
        target = page.parent / file if file else page
        if "://" not in link and not (target.exists() and (not anchor or anchor in anchors(target.read_text()))):
            lost.append(link)
    return lost


def anchors(text: str) -> set[str]:
    """A page's headings as GitHub names them in links."""
    heads = re.findall(r"^#+ (.+)$", _FENCE.sub("", text), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", head.lower()).replace(" ", "-") for head in heads}


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_links_lead_somewhere(page: Path) -> None:
    assert lost_links(page, page.read_text()) == []


def test_a_link_to_no_heading_is_lost() -> None:
    text = "[a](docs/security.md#api-keys) [b](docs/security.md#api-key) [c](docs/secure.md) [d](https://locust.io)"
    assert lost_links(ROOT / "README.md", text) == ["docs/security.md#api-key", "docs/secure.md"]


@pytest.mark.parametrize(
    "text",
    [
        "```sh\nlocust -f locustfiles/chat.py --no-such-option\n```",
        "```sh\nlocust -f locustfiles/chatter.py\n```",
        "```console\n$ python -m exporters compar a b\n```",
        "```sh\npython -m vllm_launch serve x --prot 1\n```",
        "`make demos`",
        "```sh\npython -m benchmarks no_such_part\n```",
        "```sh\ndocker compose --profile gpus up\n```",
        "```sh\nkubectl apply -k k8s/overlays/none\n```",
    ],
)
def test_the_search_finds(text: str) -> None:
    assert [fault for words in commands(text) for fault in faults(words)]
