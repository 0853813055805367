"""YAML files checked against a pydantic model, with errors that name file, line, key and mend."""

from __future__ import annotations

import difflib
import re
import types
import typing
from collections.abc import Sequence
from pathlib import Path
from typing import Any, TypeVar

import yaml
from pydantic import BaseModel, ValidationError

from tailgate.exits import BadInput

Model = TypeVar("Model", bound=BaseModel)


class FaultAt(ValueError):
    """Raised by a model's validator for a fault further down: `loc` is the path to the key, as in the file."""

    def __init__(self, loc: tuple[int | str, ...], message: str) -> None:
        self.loc = loc
        super().__init__(message)


class _UniqueKeys(yaml.SafeLoader):
    """A safe loader that refuses a key given twice, instead of silently keeping the last, and half characters."""


def _mapping(loader: _UniqueKeys, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
    seen: set[str] = set()
    for key_node, _ in node.value:
        if not isinstance(key_node, yaml.ScalarNode):
            raise yaml.constructor.ConstructorError(None, None, "a key must be plain text", key_node.start_mark)
        if key_node.value in seen:
            raise yaml.constructor.ConstructorError(
                None, None, f"the key '{key_node.value}' stands twice; keep one of them", key_node.start_mark
            )
        seen.add(key_node.value)
    return yaml.SafeLoader.construct_mapping(loader, node, deep)


def _text(loader: _UniqueKeys, node: yaml.ScalarNode) -> str:
    value = str(loader.construct_scalar(node))
    if half := re.search("[\ud800-\udfff]", value):
        problem = f"'\\u{ord(half[0]):x}' is half a character, which no request can hold; write the character itself"
        raise yaml.constructor.ConstructorError(None, None, problem, node.start_mark)
    return value


_UniqueKeys.add_constructor(yaml.resolver.BaseResolver.DEFAULT_MAPPING_TAG, _mapping)
_UniqueKeys.add_constructor(yaml.resolver.BaseResolver.DEFAULT_SCALAR_TAG, _text)


def read_yaml(path: Path) -> tuple[Any, yaml.Node | None]:
    """The file's data and its node tree (for line numbers). Raises `BadInput` if unreadable or not YAML."""
    try:
        text = path.read_text(encoding="utf-8")
    except OSError as error:
        raise BadInput(f"{path}: {error.strerror}", "give the path of a YAML file that can be read") from None
    except UnicodeDecodeError:
        raise BadInput(f"{path}: not UTF-8 text", "save the file as UTF-8") from None
    try:
        return yaml.load(text, Loader=_UniqueKeys), yaml.compose(text, Loader=_UniqueKeys)
    except yaml.MarkedYAMLError as error:
        line = error.problem_mark.line + 1 if error.problem_mark else 1
        raise BadInput(f"{path}:{line}: not valid YAML: {error.problem}", "mend that line") from None
    except yaml.reader.ReaderError as error:
        line = text.count("\n", 0, error.position) + 1
        raise BadInput(
            f"{path}:{line}: YAML has no place for the character U+{error.character:04X}", "remove it"
        ) from None
    except RecursionError:
        raise BadInput(f"{path}: nested too deeply", "flatten it") from None


def read_model(path: Path, model: type[Model]) -> Model:
    """The file as an instance of `model`; raises `BadInput` naming the first fault's line, key and mend.

    Validators find the file's directory in their context, for paths that are meant from there.
    """
    data, node = read_yaml(path)
    return check_model(data, model, str(path), node, {"directory": path.parent})


def check_model(
    data: Any,
    model: type[Model],
    source: str,
    node: yaml.Node | None = None,
    context: dict[str, Any] | None = None,
) -> Model:
    """`data` as an instance of `model`; `source` and `node` say where it stands, for the error's text."""
    if not isinstance(data, dict):
        raise BadInput(f"{source}:1: expected a mapping of keys to values", "write 'key: value' lines")
    try:
        return model.model_validate(data, context=context)
    except ValidationError as error:
        fault = _first(error.errors(include_url=False))
        raise BadInput(*_explain(fault, model, source, node)) from None


def _first(faults: Sequence[Any]) -> Any:
    """The fault to name: an unknown key before a missing one, which it probably was meant to be."""
    return next((fault for fault in faults if fault["type"] == "extra_forbidden"), faults[0])


def _explain(fault: Any, model: type[BaseModel], source: str, node: yaml.Node | None) -> tuple[str, str]:
    kind, context = fault["type"], fault.get("ctx", {})
    inner = context.get("error")
    loc = fault["loc"] + (inner.loc if isinstance(inner, FaultAt) else ())
    path, line = _locate(loc, node, new_key=kind in ("extra_forbidden", "missing"))
    key = ".".join(str(part) for part in path) or "the file"
    where = f"{source}:{line}" if node is not None else source
    if kind == "extra_forbidden":
        return f"{where}: unknown key '{key}'", _closest(str(path[-1]), _known_keys(model, path[:-1]))
    if kind == "missing":
        return f"{where}: the key '{key}' is missing", "add it"
    if kind == "union_tag_invalid":
        tags = re.findall(r"'([^']*)'", context["expected_tags"])
        return f"{where}: {key}: unknown {context['discriminator'][1:-1]} '{context['tag']}'", _closest(
            context["tag"], tags
        )
    if kind == "union_tag_not_found":
        return f"{where}: the key '{key}.{context['discriminator'][1:-1]}' is missing", "add it"
    if kind == "literal_error" and isinstance(fault.get("input"), str):
        allowed = re.findall(r"'([^']*)'", context["expected"])
        return f"{where}: {key}: '{fault['input']:.80}' is none of its values", _closest(fault["input"], allowed)
    if kind == "too_short":
        return f"{where}: {key}: needs at least {context['min_length']}, has {context['actual_length']}", "add to it"
    message = str(fault["msg"]).removeprefix("Value error, ").removeprefix("Assertion failed, ")
    if kind in ("value_error", "assertion_error"):
        return f"{where}: {key}: {message}", ""
    given = fault.get("input")
    mend = "put it in quotes" if kind == "string_type" and isinstance(given, int | float) else "mend that value"
    return f"{where}: {key}: {message[:1].lower()}{message[1:]}, got {given!r:.80}", mend


def _closest(word: str, known: Sequence[str]) -> str:
    close = difflib.get_close_matches(word, known, n=1, cutoff=0.5)
    return f"did you mean '{close[0]}'?" if close else f"known: {', '.join(sorted(known))}"


def _locate(loc: tuple[int | str, ...], node: yaml.Node | None, new_key: bool) -> tuple[list[int | str], int]:
    """The parts of pydantic's location that stand in the file (it adds union tags), and the deepest one's line.

    `new_key`: the last part is a key that may not stand in the file, and is kept all the same.
    """
    if node is None:
        return list(loc), 1
    path: list[int | str] = []
    line = node.start_mark.line + 1
    for depth, part in enumerate(loc):
        if isinstance(node, yaml.MappingNode):
            spellings = (str(part), str(part).replace("-", "_"))
            hit = next(((k, v) for k, v in node.value if k.value in spellings), None)
            if hit is None:
                if new_key and depth == len(loc) - 1:
                    path.append(part)
                continue
            path.append(part)
            line, node = hit[0].start_mark.line + 1, hit[1]
        elif isinstance(node, yaml.SequenceNode) and isinstance(part, int) and part < len(node.value):
            path.append(part)
            node = node.value[part]
            line = node.start_mark.line + 1
    return path, line


def _known_keys(model: type[BaseModel], path: list[int | str]) -> list[str]:
    """The keys allowed at `path`; the union of them where several models fit there."""
    models: list[type[BaseModel]] = [model]
    for part in path:
        if isinstance(part, int):
            continue
        inner: list[type[BaseModel]] = []
        for candidate in models:
            for name, field in candidate.model_fields.items():
                if part in (name, field.alias):
                    inner += _models_in(field.annotation)
        models = inner or models
    return sorted({f.alias or name for candidate in models for name, f in candidate.model_fields.items()})


def _models_in(annotation: Any) -> list[type[BaseModel]]:
    if isinstance(annotation, type) and not isinstance(annotation, types.GenericAlias):
        return [annotation] if issubclass(annotation, BaseModel) else []
    return [found for argument in typing.get_args(annotation) for found in _models_in(argument)]
