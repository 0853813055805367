"""A token counter over a model's own tokenizer files, for when the server offers no `/tokenize`.

Needs the `tokenizers` library (the extra `tokenizers`). The chat template is rendered as Hugging Face's
`apply_chat_template` renders it: Jinja2 in a sandbox with `trim_blocks` and `lstrip_blocks`.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from datetime import datetime
from pathlib import Path
from typing import Any

from jinja2 import Template, TemplateError
from jinja2.sandbox import ImmutableSandboxedEnvironment

from tailgate.exits import BadInput
from workloads.tokens import Message, Tools


class TokenizerFile:
    """Counts with `tokenizer.json`; chat prompts too where a chat template lies beside it.

    `path` is that file or the directory that holds it. Raises `BadInput` where it cannot be read.
    """

    def __init__(self, path: Path) -> None:
        file = path / "tokenizer.json" if path.is_dir() else path
        try:
            from tokenizers import Tokenizer
        except ImportError:
            raise BadInput(
                "--tokenizer needs the library 'tokenizers'", "install it with: pip install 'tailgate[tokenizers]'"
            ) from None
        if not file.is_file():
            raise BadInput(f"--tokenizer: {file} is not a file", "give a tokenizer.json or the directory that holds it")
        try:
            self._tokenizer = Tokenizer.from_file(str(file))
        except Exception as error:  # the library raises bare Exception for every fault of the file
            raise BadInput(f"--tokenizer: {file}: {error}", "give a model's tokenizer.json") from None
        self._config = _read_config(file.with_name("tokenizer_config.json"))
        self._template = _read_template(file.parent, self._config)
        self.description = f"{file.parent.name}/{file.name}"

    def count_text(self, text: str) -> int:
        return len(self._tokenizer.encode(text).ids)

    def count_messages(self, messages: Sequence[Message], tools: Tools = ()) -> int | None:
        """None where the model's files hold no chat template."""
        if self._template is None:
            return None
        special = {name: _token_text(self._config.get(name)) for name in ("bos_token", "eos_token", "pad_token")}
        try:
            text = self._template.render(
                messages=list(messages), tools=list(tools) or None, add_generation_prompt=True, **special
            )
        except TemplateError as error:
            raise BadInput(
                f"--tokenizer: the chat template fails: {error}", "mend it or use the completions endpoint"
            ) from None
        return len(self._tokenizer.encode(text, add_special_tokens=False).ids)


def _read_config(path: Path) -> dict[str, Any]:
    try:
        config = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        return {}
    except (OSError, ValueError) as error:
        raise BadInput(f"--tokenizer: {path}: {error}", "mend or remove that file") from None
    return config if isinstance(config, dict) else {}


def _read_template(directory: Path, config: dict[str, Any]) -> Template | None:
    source: Any = config.get("chat_template")
    if isinstance(source, list):  # several named templates; "default" is the one a chat request gets
        source = next((item.get("template") for item in source if item.get("name") == "default"), None)
    own_file = directory / "chat_template.jinja"
    if own_file.is_file():
        source = own_file.read_text(encoding="utf-8")
    if not isinstance(source, str):
        return None
    environment = ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=["jinja2.ext.loopcontrols"]
    )
    environment.globals["raise_exception"] = _refuse
    environment.globals["strftime_now"] = lambda pattern: datetime.now().strftime(pattern)
    environment.filters["tojson"] = lambda value, **options: json.dumps(value, ensure_ascii=False, **options)
    try:
        return environment.from_string(source)
    except TemplateError as error:
        raise BadInput(f"--tokenizer: the chat template cannot be read: {error}", "mend it or remove it") from None


def _refuse(message: str) -> None:
    raise TemplateError(message)


def _token_text(token: Any) -> str:
    """Special tokens stand in the config as text or as a mapping with `content`."""
    return str(token.get("content", "")) if isinstance(token, dict) else str(token or "")
