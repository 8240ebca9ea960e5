"""The page of trained heads: safe, one file, and honest about gain."""

from __future__ import annotations

import copy
import re
from pathlib import Path
from typing import Any

import pytest

from browser import fits_any_screen
from notsodeep.errors import InvalidInput
from notsodeep.papers.head_comparison import HEAD_LABELS, by_settings
from notsodeep.report.collapse_page import (
    headline,
    sentences,
    verdict_colour,
    write_collapse_page,
)

Record = dict[str, Any]


def test_page_is_one_safe_file(imbalanced: list[Record], tmp_path: Path) -> None:
    heads = ("explicit", "deq", "deq_truncated")
    records = copy.deepcopy([r for r in imbalanced if r["settings"]["head"] in heads])
    for record in records:
        record["settings"]["data"] = "<script>alert(1)</script>"
    page = write_collapse_page(records, tmp_path / "report.html").read_text()
    assert "<script>" not in page
    assert "&lt;script&gt;" in page
    assert not re.findall(r'(?:src|href)="(?!#|data:)', page.replace("xlink:href", "href"))
    assert page.count("<svg") == page.count('role="img"') == 2 * 4 + 1
    ids = re.findall(r'\bid="([^"]+)"', page)
    assert len(ids) == len(set(ids))
    assert "prefers-color-scheme: dark" in page
    assert "width=device-width" in page
    assert page.index("Rule: one head is ahead") < page.index("<table")
    for head in heads:
        assert HEAD_LABELS[head] in page
    assert "3 steps of z ← A z + h" in page


@pytest.mark.slow
def test_tables_of_all_heads_fit(imbalanced: list[Record], tmp_path: Path) -> None:
    fits_any_screen(write_collapse_page(imbalanced, tmp_path / "report.html"), tmp_path)


@pytest.mark.usefixtures("undrawn")
def test_one_seed_decides_nothing(balanced: list[Record], tmp_path: Path) -> None:
    records = [r for r in balanced if r["settings"]["seed"] == 0][:4]
    assert {"explicit", "deq"} < {record["settings"]["head"] for record in records}
    assert headline(by_settings(records)).startswith("One seed")
    page = write_collapse_page(records, tmp_path / "report.html").read_text()
    assert 'class="verdict open"' in page
    assert "One seed. 10 classes of 20 training samples." in page
    assert write_collapse_page(records, tmp_path / "again.html").read_text() == page


def test_nothing_to_show_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InvalidInput, match="at least one trained head"):
        write_collapse_page([], tmp_path / "report.html")


def with_nc1(template: Record, **values: float | None) -> list[list[Record]]:
    """Give the heads of one setting certain values of NC1, with little spread."""
    records = []
    known = {head: value for head, value in values.items() if value is not None}
    for head, value in known.items():
        for seed in range(3):
            record = copy.deepcopy(template)
            record["settings"].update(head=head, seed=seed)
            record["epochs"][-1]["nc1"] = value * (1.0 + 0.01 * (seed % 2))
            records.append(record)
    return by_settings(records)


@pytest.mark.parametrize(
    ("deq", "explicit", "matched", "colour", "words"),
    [
        (1.0, 4.0, 1.0, "no", "advantage of the DEQ head is gain"),
        (1.0, 4.0, 0.5, "no", "advantage of the DEQ head is gain"),
        (1.0, 4.0, 2.0, "yes", "gain alone does not explain"),
        (1.0, 1.0, 1.0, "open", "No advantage"),
        (2.0, 1.0, 1.0, "no", "No advantage"),
        (1.0, 4.0, None, "no", "whether by gain was not tested"),
        (None, 1.0, 1.0, "open", "nothing to compare"),
    ],
)
def test_the_verdict_follows_the_evidence(
    balanced: list[Record],
    deq: float | None,
    explicit: float | None,
    matched: float | None,
    colour: str,
    words: str,
) -> None:
    groups = with_nc1(balanced[0], deq=deq, explicit=explicit, explicit_matched=matched)
    assert words in headline(groups)
    assert verdict_colour(groups) == colour


def test_the_share_of_gain_is_stated(balanced: list[Record]) -> None:
    groups = with_nc1(balanced[0], deq=1.0, explicit=4.0, explicit_matched=2.0)
    (said,) = [sentence for sentence in sentences(groups) if "of the lead" in sentence]
    assert "has 50% of the lead" in said
    # All records are copies of one network, so that both heads show its gain.
    gain = balanced[0]["epochs"][-1]["gain_on_means"]
    assert (
        f"the DEQ head has {gain:.2f} and its explicit control {gain:.2f}" in sentences(groups)[-1]
    )
