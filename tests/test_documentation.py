"""Every Python block of the README and the documentation runs, page by page."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
BLOCK = re.compile(r"^```python\n(.*?)^```", flags=re.DOTALL | re.MULTILINE)


def blocks_of(page: Path) -> list[tuple[int, str]]:
    """Return the blocks of a page, each with the number of its first line."""
    text = page.read_text()
    return [(text.count("\n", 0, m.start(1)), m[1]) for m in BLOCK.finditer(text)]


def name_of(page: Path) -> str:
    return str(page.relative_to(ROOT))


# These pages compile, train or start a cluster; README, tutorial and the other how-to pages run
# every time.
SLOW = {
    ROOT / "docs" / f"{name}.md"
    for name in (
        "compiling",
        "howto/own-deq",
        "kernels-in-practice",
        "other-models",
        "theory/matching",
    )
}


@pytest.mark.parametrize(
    "page",
    [
        pytest.param(page, id=name_of(page), marks=[pytest.mark.slow] * (page in SLOW))
        for page in PAGES
        if blocks_of(page)
    ],
)
def test_code_runs(page: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Blocks of a page build on one another, as a reader would type them."""
    monkeypatch.chdir(tmp_path)
    names: dict[str, object] = {"__name__": "__main__"}
    for line, block in blocks_of(page):
        # Padding makes line numbers of an error those of the page.
        exec(compile("\n" * line + block, name_of(page), "exec"), names)


def anchors_of(page: Path) -> set[str]:
    """Return what the headings of a page are linked by."""
    text = re.sub(r"^```.*?^```", "", page.read_text(), flags=re.DOTALL | re.MULTILINE)
    headings = re.findall(r"^#+ (.+)$", text, flags=re.MULTILINE)
    plain = (re.sub(r"[^\w\- ]", "", heading.lower()) for heading in headings)
    return {heading.replace(" ", "-") for heading in plain}


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_links_lead_somewhere(page: Path) -> None:
    for target, anchor in re.findall(r"\]\(([^)#]*)(?:#([^)]*))?\)", page.read_text()):
        if target.startswith(("http:", "https:", "mailto:")):
            continue
        place = page.parent / target if target else page
        assert place.exists(), target
        if anchor:
            assert anchor in anchors_of(place), f"{target}#{anchor}"


@pytest.mark.slow
def test_the_pages_build_and_need_no_network(tmp_path: Path) -> None:
    pytest.importorskip("furo")
    build = ["-m", "sphinx", "-W", "-q", "-b", "html", str(ROOT / "docs"), str(tmp_path)]
    done = subprocess.run([sys.executable, *build], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    loads = re.compile(r"<(?:script|img|iframe)[^>]+src=\"([^\"]+)|<link[^>]+href=\"([^\"]+)")
    for page in tmp_path.rglob("*.html"):
        found = ["".join(match) for match in loads.findall(page.read_text())]
        assert found
        assert not [place for place in found if "//" in place], page
    formulas = (tmp_path / "theory" / "mixture.html").read_text()
    assert formulas.count('class="math"') == formulas.count("<svg style=")
    assert "\\frac" not in re.sub(r'aria-label="[^"]*"', "", formulas)
