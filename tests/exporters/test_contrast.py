"""Whatever is read on the report and on the tab stands out from what is behind it, in the light and in the dark."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

import exporters

HERE = Path(exporters.__file__).parent
# WCAG 2.2, success criterion 1.4.3: 4.5 to 1 for text.
ENOUGH = 4.5
READ = [
    ("ink", "paper"), ("ink", "panel"), ("muted", "paper"), ("muted", "panel"), ("base", "paper"),
    ("good", "good-tint"), ("bad", "bad-tint"), ("open", "open-tint"), ("good", "paper"), ("bad", "paper"),
]  # fmt: skip


def luminance(colour: str) -> float:
    """Relative luminance of #rrggbb, as WCAG defines it."""
    channels = [int(colour[i : i + 2], 16) / 255 for i in (1, 3, 5)]
    linear = [c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in channels]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]


def contrast(one: str, other: str) -> float:
    darker, lighter = sorted((luminance(one), luminance(other)))
    return (lighter + 0.05) / (darker + 0.05)


def themes() -> list[tuple[str, dict[str, str]]]:
    """Each block of colours; a later one of a file changes what the first one said."""
    found = []
    for path in (HERE / "report" / "style.css", HERE / "tab" / "tab.css"):
        blocks = [
            dict(re.findall(r"--([\w-]+): (#[0-9a-f]{6})", block))
            for block in re.findall(r"(?::root|:host[^{]*) ?\{([^}]*--paper[^}]*)\}", path.read_text())
        ]
        found += [(f"{path.name} {i}", blocks[0] | block) for i, block in enumerate(blocks)]
    return found


@pytest.mark.parametrize(("name", "colours"), themes())
def test_text_stands_out(name: str, colours: dict[str, str]) -> None:
    marked = [("candidate", "paper")] if "candidate" in colours else [("run", "paper")]
    for text, behind in [*READ, *marked]:
        ratio = contrast(colours[text], colours[behind])
        assert ratio >= ENOUGH, f"{name}: {text} on {behind} is {ratio:.2f} to 1"


def test_both_pages_have_a_light_and_a_dark_theme() -> None:
    names = [name for name, _ in themes()]
    assert names == ["style.css 0", "style.css 1", "style.css 2", "tab.css 0", "tab.css 1"]
