"""What the code may not do at all, looked for in its syntax."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.locust_runs import ROOT

ROOMS = ("tailgate", "workloads", "exporters", "locustfiles", "vllm_launch", "benchmarks", "docker")
_MODULES = frozenset({"pickle", "cPickle", "_pickle", "shelve", "marshal", "dill", "cloudpickle", "joblib"})
_NAMES = frozenset({"eval", "exec", "__import__"})
_CALLS = frozenset(
    {
        *("yaml.load", "yaml.load_all", "yaml.unsafe_load", "yaml.full_load", "yaml.full_load_all"),
        *("os.system", "os.popen", "tempfile.mktemp", "torch.load", "pandas.read_pickle"),
    }
)


def forbidden(source: str) -> Iterator[str]:
    """What stands in `source` that may not."""
    tree = ast.parse(source)
    safe = {
        node.name
        for node in ast.walk(tree)
        if isinstance(node, ast.ClassDef) and any("SafeLoader" in ast.unparse(base) for base in node.bases)
    }
    for node in ast.walk(tree):
        if isinstance(node, ast.Import | ast.ImportFrom):
            names = [alias.name for alias in node.names] + [getattr(node, "module", None) or ""]
            yield from (f"imports {name}" for name in names if name.split(".")[0] in _MODULES)
        elif isinstance(node, ast.Call):
            name = ast.unparse(node.func)
            loaders = {ast.unparse(word.value) for word in node.keywords if word.arg == "Loader"}
            if (name in _NAMES or name in _CALLS) and not (loaders and loaders <= safe):
                yield f"calls {name}"
            for keyword in node.keywords:
                if keyword.arg in ("shell", "allow_pickle") and not (
                    isinstance(keyword.value, ast.Constant) and keyword.value.value is False
                ):
                    yield f"calls {name} with {keyword.arg}"


@pytest.mark.parametrize("room", ROOMS)
def test_nothing_loads_code_from_data(room: str) -> None:
    files = sorted((ROOT / room).rglob("*.py"))
    assert files
    found = [f"{path.relative_to(ROOT)}: {what}" for path in files for what in forbidden(path.read_text())]
    assert found == []


@pytest.mark.parametrize(
    "source",
    [
        "import pickle",
        "from marshal import loads",
        "eval(x)",
        "yaml.load(x)",
        "subprocess.run(x, shell=True)",
        "np.load(x, allow_pickle=True)",
        "os.system(x)",
    ],
)
def test_the_search_finds(source: str) -> None:
    assert list(forbidden(source))
    assert not list(forbidden("yaml.safe_load(x); np.load(x, allow_pickle=False); model.eval()"))


def test_no_file_of_the_repository_holds_a_key() -> None:
    import re

    looks = re.compile(r"\b(sk-[A-Za-z0-9]{20,}|hf_[A-Za-z0-9]{20,}|AKIA[0-9A-Z]{16}|gh[pousr]_[A-Za-z0-9]{30,})\b")
    suffixes = {".py", ".yaml", ".yml", ".md", ".json", ".env", ".toml", ""}
    skipped = {".git", ".venv", ".venv-vllm", ".cache", "results", "build"}
    found = []
    for path in ROOT.rglob("*"):
        relative: Path = path.relative_to(ROOT)
        if relative.parts[0] in skipped or path.suffix not in suffixes or not path.is_file():
            continue
        if looks.search(path.read_text(errors="replace")):
            found.append(str(relative))
    assert found == []
