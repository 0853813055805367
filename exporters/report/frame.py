"""What every page has in common: `frame.html` around it, and its style."""

from __future__ import annotations

from pathlib import Path

import jinja2
from markupsafe import Markup

_HERE = Path(__file__).parent


def templates(folder: Path) -> jinja2.Environment:
    """Those of `folder`, whose pages extend `frame.html`; it wants `title` and `simulated`."""
    loader = jinja2.FileSystemLoader([folder, _HERE])
    environment = jinja2.Environment(loader=loader, autoescape=True, trim_blocks=True, lstrip_blocks=True)
    environment.globals["style"] = Markup((_HERE / "style.css").read_text(encoding="utf-8"))
    return environment
