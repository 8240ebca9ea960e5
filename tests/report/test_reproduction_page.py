"""The page of an experiment: findings, figure and settings in one safe file."""

from __future__ import annotations

import re
from pathlib import Path

from notsodeep.papers.reproduction import Experiment, Finding, experiment, reproduce
from notsodeep.plotting.canvas import new_figure
from notsodeep.report.reproduction_figures import reproduction_figure
from notsodeep.report.reproduction_page import write_reproduction_page


def test_page_of_a_real_run(tmp_path: Path) -> None:
    name = "gap-versus-dimension"
    records = reproduce(name, tmp_path, profile="smoke")
    work = experiment(name)
    figure = reproduction_figure(name, records)
    page = write_reproduction_page(work, records, figure, tmp_path, "smoke").read_text()
    assert (tmp_path / "report.html").exists()
    for finding in work.findings(records):
        assert finding.ours in page
    assert "−1/2 (theorem)" in page
    assert page.count("<svg") == page.count('role="img"') == 1
    assert not re.findall(r'(?:src|href)="(?!#|data:)', page.replace("xlink:href", "href"))
    for setting in ("dimension", "sigma a2", "versions"):
        assert setting in page


def test_values_are_escaped_and_the_paper_column_is_left_out(tmp_path: Path) -> None:
    work = Experiment(
        "own", "<b>bold</b> title", "a & b", lambda profile: [], lambda cell, seed: {},
        lambda records: [Finding("<i>quantity</i>", "", "<script>1</script>", "because")],
    )  # fmt: skip
    figure, _ = new_figure()
    records = [{"cell": {"note": "<u>" * 60, "number": k}} for k in range(40)]
    page = write_reproduction_page(work, records, figure, tmp_path, "quick").read_text()
    for tag in ("<b>", "<i>", "<u>", "<script>"):
        assert tag not in page
    assert "a &amp; b" in page
    assert "<th>paper</th>" not in page
    assert "no printed numbers" in page
    assert "5, …, 37, 38, 39" in page
