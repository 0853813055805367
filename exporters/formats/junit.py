"""A verdict as JUnit XML: one test case for everything the gate looked at, as pipelines show tests.

Worse, or a threshold broken: `failure`. What cannot be told (too few requests, not comparable): `error`. Undecided:
`skipped`, with what would decide; it fails no pipeline, but nobody takes it for a pass.
"""

from __future__ import annotations

import re
from xml.etree import ElementTree as Xml

from exporters.compare import Comparison
from exporters.gate import decisions

# What XML 1.0 cannot hold at all, not even escaped (its section 2.2).
_NO_XML = re.compile("[^\t\n\r -\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")


def dump(comparison: Comparison, workload: str | None) -> str:
    """The whole file."""
    cases = [_case(d.title, workload, d.outcome, d.said) for d in decisions(comparison)]
    cases += [_case("comparable", workload, "too few", reason) for reason in comparison.refusals if comparison.refused]
    counts = {tag: str(sum(case.find(tag) is not None for case in cases)) for tag in ("failure", "error", "skipped")}
    suite = Xml.Element(
        "testsuite",
        name=_plain(f"tailgate: {comparison.candidate_label} against {comparison.base_label}"),
        tests=str(len(cases)),
        failures=counts["failure"],
        errors=counts["error"],
        skipped=counts["skipped"],
    )
    properties = Xml.SubElement(suite, "properties")
    for name, value in (("verdict", comparison.verdict), ("simulated", str(comparison.simulated).lower())):
        Xml.SubElement(properties, "property", name=name, value=value)
    suite.extend(cases)
    Xml.SubElement(suite, "system-out").text = _plain(comparison.text())
    root = Xml.Element("testsuites", name="tailgate")
    root.append(suite)
    Xml.indent(root)
    return f'<?xml version="1.0" encoding="UTF-8"?>\n{Xml.tostring(root, encoding="unicode")}\n'


def _case(title: str, workload: str | None, outcome: str, said: str) -> Xml.Element:
    case = Xml.Element("testcase", classname=_plain(f"tailgate.{workload or 'run'}"), name=_plain(title), time="0")
    tag = {"failed": "failure", "too few": "error", "undecided": "skipped"}.get(outcome)
    if tag:
        Xml.SubElement(case, tag, message=_plain(said))
    else:
        Xml.SubElement(case, "system-out").text = _plain(said)
    return case


def _plain(text: str) -> str:
    return _NO_XML.sub("?", text)
