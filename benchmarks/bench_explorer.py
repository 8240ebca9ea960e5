"""How fast the explorer answers: in the server alone, and in a real browser.

Every move is a state that was not seen before, so that nothing comes from a cache of views; n = 400
and p = 500 unless a row says otherwise, refinement off.  In the server a move is everything from
the state to the drawn figures.  In the browser it is the time from the key press to the last figure
on the page; the start is the time from the command to the first controls and to the last figure.
`load` is the machine's load average over the last minute: above its number of cores it had other
work, and the processor's seconds tell more than those of the clock.
Arguments: --quick for fewer moves, --no-browser for the server alone.
"""

from __future__ import annotations

import statistics
import sys
import tempfile
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

from measure import Results, benchmark_parser
from notsodeep.explorer.drawings import figures_of
from notsodeep.explorer.explorer_data import prepared
from notsodeep.explorer.explorer_results import settle
from notsodeep.explorer.shown import KnownData, view_of
from notsodeep.explorer.state import ExplorerState

sys.path.insert(0, str(Path(__file__).parents[1] / "tests" / "support"))
from browser import chromium, metric, served

HEAT_MAP = "img[alt^='Heat map']"


def in_server(label: str, state: ExplorerState, changes: list[dict[str, Any]]) -> dict[str, Any]:
    """Time moves of one widget: data anew only where they change."""
    data, key = KnownData.of(prepared(state)), state.key(state.data_fields)
    figures_of(view_of(state, data))
    times, work = [], []
    for change in changes:
        moved = replace(state, **change)
        start, begun = time.perf_counter(), time.process_time()
        if moved.key(moved.data_fields) != key:
            data = KnownData.of(prepared(moved), data)
        figures_of(view_of(moved, data))
        times.append(time.perf_counter() - start)
        work.append(time.process_time() - begun)
    return {
        **summary(f"server: {label}", times),
        "median_processor_seconds": round(statistics.median(work), 3),
    }


def summary(label: str, times: list[float]) -> dict[str, Any]:
    """Make a row of the table."""
    return {
        "case": label,
        "median_seconds": round(statistics.median(times), 3),
        "longest_seconds": round(max(times), 3),
        "times": len(times),
    }


def in_browser(count: int) -> list[dict[str, Any]]:
    """Start the explorer, and move its sliders with the keyboard."""
    with tempfile.TemporaryDirectory() as place:
        folder = Path(place)
        with chromium(folder / "profile", viewport={"width": 1400, "height": 1000}) as browser:
            browser.new_page()  # the browser itself is there before the clock starts
            start = time.perf_counter()
            with served(folder) as address:
                page = browser.new_page()
                page.goto(address)
                page.get_by_role("slider", name="σa²").wait_for()
                controls = time.perf_counter() - start
                page.locator(HEAT_MAP).wait_for()
                everything = time.perf_counter() - start
                rows = [
                    summary("browser: start to the first controls", [controls]),
                    summary("browser: start to the last figure", [everything]),
                ]
                for name, slider in (("σa²", "σa²"), ("class means", "length of the class means")):
                    moves = [moved(page, slider) for _ in range(count)]
                    rows.append(summary(f"browser: {name} moves", moves))
                return rows


def moved(page: Any, slider: str) -> float:
    """Press a key on a slider, and wait until the last figure is another one."""
    before = page.locator(HEAT_MAP).get_attribute("src")
    handle = page.get_by_role("slider", name=slider)
    handle.focus()
    start = time.perf_counter()
    handle.press("ArrowRight")
    page.wait_for_function(
        "([place, before]) => { const image = document.querySelector(place);"
        " return image && image.src !== before; }",
        arg=[HEAT_MAP, before],
        polling=20,
    )
    seconds = time.perf_counter() - start
    metric(page, "relative gap").wait_for()
    return seconds


def main() -> None:
    """Run the measurements and store them."""
    parser = benchmark_parser(__doc__)
    parser.add_argument("--no-browser", action="store_true")
    options = parser.parse_args()
    count = 2 if options.quick else 9
    settle()  # as the server does
    plain = ExplorerState()

    def shares(first: float) -> list[dict[str, Any]]:
        """Values of σa² one step of the slider apart."""
        return [{"sigma_a2": round(first + 0.01 * k, 2)} for k in range(1, count + 1)]

    tanh = replace(plain, activation="tanh", kind="ntk")
    larger = [{"dimension": 500 + 10 * k} for k in range(1, count + 1)]
    server: list[tuple[str, ExplorerState, list[dict[str, Any]]]] = [
        ("σa² moves, family auto", plain, shares(0.2)),
        ("σa² moves, leaky ReLU", replace(plain, family="leaky_relu"), shares(0.2)),
        ("σa² moves, tanh, tangent kernel", tanh, shares(0.05)),
        ("p moves (data and law anew)", plain, larger),
        ("σa² moves on digits", replace(plain, data="digits"), shares(0.2)),
    ]
    results = Results("explorer", options.results)
    for label, state, changes in server[:1] if options.quick else server:
        results.add(**in_server(label, state, changes))
    if not options.no_browser:
        for row in in_browser(count):
            results.add(**row)
    results.write()


if __name__ == "__main__":
    main()
