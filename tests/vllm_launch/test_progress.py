"""The progress of an experiment, on a terminal and in a file."""

from __future__ import annotations

import io

from vllm_launch.experiments.progress import Progress


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def legs(stream: io.StringIO) -> str:
    progress = Progress(2, stream)
    progress.step("A base")
    progress.show(0.5, "7/14 s")
    progress.done("3 ok")
    progress.step("B tuned")
    progress.show(2.0, "14/14 s")
    progress.broken("not finished")
    return stream.getvalue()


def test_in_a_file_each_leg_has_plain_lines_and_no_bar() -> None:
    assert legs(io.StringIO()) == (
        "[1/2] A base: starting\n[1/2] A base: 3 ok\n[2/2] B tuned: starting\nnot finished\n"
    )


def test_on_a_terminal_one_line_a_leg_moves_and_its_end_stands() -> None:
    shown = legs(Terminal())
    assert shown.split("\n") == [
        "\r\x1b[K[1/2] A base: starting\r\x1b[K[1/2] A base ████████████░░░░░░░░░░░░ 7/14 s\r\x1b[K[1/2] A base: 3 ok",
        "\r\x1b[K[2/2] B tuned: starting\r\x1b[K[2/2] B tuned ████████████████████████ 14/14 s",
        "not finished",
        "",
    ]
