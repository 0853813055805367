"""The report shows what is there, escapes what is hostile, needs no network, and stays small."""

from __future__ import annotations

import re
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest

from exporters import baseline
from exporters.__main__ import main
from exporters.compare import DEFAULT_GATE, compare
from exporters.prometheus import RunMetrics
from exporters.report import write_markdown, write_report
from exporters.run_store import Run, append_engine_sample
from exporters.wording import milliseconds, title
from tailgate.exits import BadInput, Exit
from tailgate.thresholds import parse_gate
from tests.support.browser import chromium, resize
from tests.support.runs import START_NS, failed, queueing_records, store

HOSTILE = "<script>alert('$x_1$')</script>\"|`&"


class _Page(HTMLParser):
    """Tags, attributes and text of a page; raises where tags do not nest."""

    void = frozenset({"meta", "link", "br", "img", "hr", "input"})

    def __init__(self, text: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.tags: set[str] = set()
        self.links: list[str] = []
        self.words: list[str] = []
        self.feed(text)
        assert self.open == []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.add(tag)
        self.links += [
            v or "" for k, v in attrs if k in ("src", "href", "xlink:href") and not (v or "").startswith("#")
        ]
        assert not [k for k, _ in attrs if k.startswith("on")]
        if tag not in self.void:
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.add(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        if not self.open or self.open[-1] != "style":
            self.words.append(data)

    @property
    def text(self) -> str:
        return " ".join(" ".join(self.words).split())


def _sides(tmp_path: Path, **both: Any) -> tuple[list[Run], list[Run]]:
    sides: tuple[list[Run], list[Run]] = ([], [])
    for side, seed, slower in ((0, 1, 1.0), (1, 1, 2.0), (1, 2, 2.0), (0, 2, 1.0)):
        name = f"{'AB'[side]}{seed}"
        records = [*queueing_records(seed, seconds=30, slower=slower), failed(999, error=HOSTILE)]
        args = {"max-num-seqs": 256, "note": HOSTILE} if side else {"max-num-seqs": 256}
        about = {"label": f"config {'AB'[side]}", "launch": {"name": name, "args": args}, "seed": seed} | both
        run = store(tmp_path / name, records, seconds=30.0, **about)
        for second in range(30):
            sample = {"time_ns": START_NS + second * 10**9, "running": 9, "waiting": side, "kv_cache_usage": 0.4}
            append_engine_sample(run.path, sample)
        sides[side].append(Run.load(run.path))
    return sides


def test_the_report_says_what_was_found_and_how(tmp_path: Path) -> None:
    base, candidate = _sides(tmp_path)
    comparison = compare(base, candidate)
    write_report(tmp_path / "report.html", base, candidate, comparison)
    text = (tmp_path / "report.html").read_text()
    page = _Page(text)
    assert "config B is worse than config A on" in page.text
    for part in ("Figure by figure", "Where the tails lie", "What the engine did meanwhile", "How it was measured",
                 "What was sent, and when", "What differed in the configs", "--note", "To repeat it",
                 "locust -f locustfiles/chat.py --headless",
                 "wire", "601 = 600 + 1 + 0"):  # fmt: skip
        assert part in page.text, part
    assert page.text.index("config B is worse") < page.text.index("Figure by figure")
    assert text.count("<svg") >= 8
    assert "Requests sent over time, and their lengths" in text
    assert len(text) < 3_000_000
    for figure in comparison.metrics:
        assert figure.verdict in page.text
    assert "Simulated" not in page.text


def test_the_report_needs_no_network_and_no_script(tmp_path: Path) -> None:
    base, candidate = _sides(tmp_path)
    write_report(tmp_path / "report.html", base, candidate, compare(base, candidate))
    text = (tmp_path / "report.html").read_text()
    page = _Page(text)
    assert page.links == []
    assert "script" not in page.tags
    assert not re.search(r"url\((?!#)|@import", text)


def test_hostile_names_are_shown_not_run(tmp_path: Path) -> None:
    sides = _sides(
        tmp_path, label=HOSTILE, model=HOSTILE, slo=None, argv=["locust", HOSTILE], workload={"name": HOSTILE}
    )
    comparison = compare(*sides)
    write_report(tmp_path / "report.html", *sides, comparison)
    page = _Page((tmp_path / "report.html").read_text())
    assert "script" not in page.tags
    assert page.text.count("<script>alert('$x_1$')</script>") >= 5
    write_markdown(tmp_path / "report.md", *sides, comparison)
    table = [line for line in (tmp_path / "report.md").read_text().splitlines() if line.startswith("|")]
    assert "<script>" not in "".join(table).replace("\\<", "")


def test_simulated_stands_above_everything(tmp_path: Path) -> None:
    base, candidate = _sides(tmp_path, engine={"name": "tailgate-simulated", "simulated": True})
    write_report(tmp_path / "report.html", base, candidate, compare(base, candidate))
    text = _Page((tmp_path / "report.html").read_text()).text
    assert text.index("Simulated.") < text.index("config B is worse")
    write_markdown(tmp_path / "report.md", base, candidate, compare(base, candidate))
    assert "**Simulated:**" in (tmp_path / "report.md").read_text()


def test_one_run_makes_a_report_too(tmp_path: Path) -> None:
    base, _ = _sides(tmp_path)
    write_report(tmp_path / "report.html", base[:1])
    text = _Page((tmp_path / "report.html").read_text()).text
    assert "Latencies" in text
    assert "What differed" not in text
    assert "too few" in text
    write_markdown(tmp_path / "report.md", base[:1])
    assert "| TTFT | 600 |" in (tmp_path / "report.md").read_text()


def test_one_request_is_one_and_no_share_is_beyond_the_whole(tmp_path: Path) -> None:
    run = store(tmp_path / "one", queueing_records(1, seconds=0.06), seconds=0.06)
    append_engine_sample(run.path, {"time_ns": START_NS + 30_000_000, "running": 1, "waiting": 0})
    write_report(tmp_path / "report.html", [Run.load(run.path)])
    page = (tmp_path / "report.html").read_text()
    assert "1 request sent in" in _Page(page).text
    assert "100 %" in page
    assert not re.search(r"\b[2-9]00 %|\b1000 %", page)


def test_a_page_of_paper_holds_it_and_its_labels_stand_apart(tmp_path: Path) -> None:
    engine = {"name": "tailgate-simulated-of-a-long-name", "version": "0.32.0", "simulated": True}
    runs = [store(tmp_path / name, queueing_records(i), engine=engine, label=name) for i, name in enumerate("ab")]
    write_report(tmp_path / "report.html", runs[:1], runs[1:], compare(runs[:1], runs[1:]))
    with chromium(tmp_path) as browser:
        browser.execute_cdp_cmd("Emulation.setEmulatedMedia", {"media": "print"})
        resize(browser, 703, 1000)  # A4 within the page's margins, at 96 dots an inch
        browser.get(f"file://{tmp_path}/report.html")
        assert browser.execute_script("return document.documentElement.scrollWidth") <= 703
        wide = (
            "return [...document.querySelectorAll('th.scale span')].filter(s => s.scrollWidth > s.clientWidth).length"
        )
        assert browser.execute_script(wide) == 0


def test_an_empty_and_an_invalid_run_are_reported_as_such(tmp_path: Path) -> None:
    run = store(tmp_path / "none", [])
    write_report(tmp_path / "report.html", [run])
    text = _Page((tmp_path / "report.html").read_text()).text
    assert "(none) is not valid:" in text
    assert "requests that succeeded inside the window: 0 " in text
    assert "No request succeeded inside the window." in text


def test_a_refused_comparison_says_why_and_shows_no_figures(tmp_path: Path) -> None:
    base, candidate = _sides(tmp_path)
    candidate[0].meta["clock"] = candidate[1].meta["clock"] = "kernel"
    write_report(tmp_path / "report.html", base, candidate, compare(base, candidate))
    text = _Page((tmp_path / "report.html").read_text()).text
    assert "Not comparable: another clock: wire against kernel." in text
    assert "Figure by figure" not in text


def test_a_file_that_cannot_be_written_is_a_mistake(tmp_path: Path) -> None:
    base, _ = _sides(tmp_path)
    with pytest.raises(BadInput, match="name a file that can be written with -o"):
        write_report(tmp_path / "no" / "such" / "report.html", base[:1])


def test_a_run_of_a_million_gaps_stays_below_three_megabytes(tmp_path: Path) -> None:
    records = queueing_records(1, rate=84, tokens=201)
    assert sum(len(r.gaps_ns) for r in records) > 1_000_000
    run = store(tmp_path / "r", records, arrival={"kind": "poisson", "rate": 84.0})
    write_report(tmp_path / "report.html", [run], [run], compare([run], [run]))
    assert (tmp_path / "report.html").stat().st_size < 3_000_000


def test_tiles_leave_out_no_gated_figure_that_is_worse(tmp_path: Path) -> None:
    base, candidate = _sides(tmp_path)
    gate = (*DEFAULT_GATE, "e2e_p50", "e2e_p90", "ttft_p50", "itl_p50")
    comparison = compare(base, candidate, gate=gate)
    worse = [m for m in comparison.gated if m.verdict == "worse"]
    assert len(worse) > 4
    write_report(tmp_path / "report.html", base, candidate, comparison)
    text = (tmp_path / "report.html").read_text()
    assert text.count('<div class="card worse">') >= len(worse)
    cards = text[text.index('class="cards"') : text.index("Figure by figure")]
    for figure in worse:
        assert f'<p class="name">{title(figure.name)}</p>' in cards


def test_a_run_against_a_stored_baseline(tmp_path: Path) -> None:
    base, candidate = _sides(tmp_path)
    stored = baseline.load(baseline.save(base[:1], "main", tmp_path))
    comparison = compare(stored, candidate[:1])
    write_report(tmp_path / "report.html", stored, candidate[:1], comparison)
    page = (tmp_path / "report.html").read_text()
    text = _Page(page).text
    assert "config B against config A" in text
    assert "Figure by figure" in text
    assert "baseline: config A" in text
    assert "--note" in text[text.index("What differed in the configs") :]
    tails = page[page.index("Where the tails lie") : page.index("What the engine did")]
    assert tails.count("var(--base)") == tails.count("var(--candidate)") > 6
    write_markdown(tmp_path / "report.md", stored, candidate[:1], comparison)
    assert "| **TTFT p95** |" in (tmp_path / "report.md").read_text()


def test_one_run_has_its_verdict_in_words_first(tmp_path: Path) -> None:
    records = [*queueing_records(1, seconds=30), failed(999)]
    good = store(tmp_path / "good", records, seconds=30.0, slo="ttft_p95<10s")
    late = store(tmp_path / "late", records, seconds=30.0, slo="ttft_p50<1ms")
    for run, word in ((good, "valid"), (late, "objective missed")):
        write_report(tmp_path / "report.html", [run])
        page = _Page((tmp_path / "report.html").read_text()).text
        told = run.summary["metrics"]["ttft_s"]["p95"]
        assert page.index(f"{word} 601 requests sent in 30.0 s, 600 ok, 1 failed") < page.index("Latencies")
        assert f"p95 {milliseconds(told)}" in page
        write_markdown(tmp_path / "report.md", [run])
        text = (tmp_path / "report.md").read_text()
        assert text.index(f"**{word.capitalize()}.** 601 requests sent") < text.index("| TTFT |")
        assert "    locust -f locustfiles/chat.py --headless" in text
    assert "was not scraped" not in page


def test_markdown_tells_classes_apart(tmp_path: Path) -> None:
    records = queueing_records(1, seconds=30)
    for position, one in enumerate(records):
        one.request_class = ("chat", "a|b")[position % 2]
    write_markdown(tmp_path / "report.md", [store(tmp_path / "r", records, seconds=30.0)])
    text = (tmp_path / "report.md").read_text()
    # A table's head right under a list would be the list's own text.
    assert "\n\n| class (ms) | run | TTFT p50 |" in text
    assert "| a\\|b | r |" in text


def test_thresholds_are_told_one_by_one(tmp_path: Path) -> None:
    base, candidate = _sides(tmp_path)
    comparison = compare(base, candidate, gate=parse_gate("ttft_p50<1ms,itl_p95<10s,itl_p95_rise<20%"))
    write_report(tmp_path / "report.html", base, candidate, comparison)
    text = _Page((tmp_path / "report.html").read_text()).text
    told = text[text.index("Thresholds") : text.index("Figure by figure")]
    assert "ttft_p50<1ms failed reached" in told
    assert "itl_p95<10s passed reached" in told
    assert "(itl_p95_rise<20%) failed" in told
    write_markdown(tmp_path / "report.md", base, candidate, comparison)
    assert "- Threshold `ttft_p50<1ms`: **failed**" in (tmp_path / "report.md").read_text()
    metrics = RunMetrics.of(candidate[0])
    metrics.set_comparison(comparison)
    assert 'tailgate_regression{label="config B",metric="ttft_p50<1ms",workload="chat-short"} 1.0' in (
        metrics.exposition()[0].decode()
    )


def test_a_gate_without_a_baseline_is_told_too(tmp_path: Path) -> None:
    run = store(tmp_path / "r", queueing_records(1, seconds=30), seconds=30.0)
    gate = parse_gate("ttft_p50<1ms,itl_p95<10s,itl_p95_rise<20%")
    write_report(tmp_path / "report.html", [run], gate=gate)
    text = _Page((tmp_path / "report.html").read_text()).text
    assert "failed 600 requests sent" in text
    told = text[text.index("Thresholds") : text.index("Latencies")]
    assert "ttft_p50<1ms failed reached" in told
    assert "itl_p95<10s passed reached" in told
    assert "itl_p95_rise<20% not looked at for want of a baseline" in told
    write_markdown(tmp_path / "report.md", [run], gate=gate)
    text = (tmp_path / "report.md").read_text()
    assert "**Failed.** 600 requests sent" in text
    assert "- Threshold `ttft_p50<1ms`: **failed**, reached " in text
    assert "- Threshold `itl_p95_rise<20%`: **not looked at**" in text


def test_the_command_reports_a_gate_on_one_run(tmp_path: Path) -> None:
    workload = {"name": "chat-short", "gate": "itl_p95<1us"}
    run = store(tmp_path / "r", queueing_records(1, seconds=30), seconds=30.0, workload=workload)

    def report(*options: str) -> tuple[int, str]:
        path = tmp_path / "report.md"
        return main(["report", str(run.path), "-o", str(path), *options]), path.read_text()

    code, text = report()
    assert (code, "- Threshold `itl_p95<1us`: **failed**" in text) == (Exit.REGRESSION, True)
    code, text = report("--gate", "itl_p95<10s")
    assert (code, "- Threshold `itl_p95<10s`: **passed**" in text) == (Exit.GOOD, True)
