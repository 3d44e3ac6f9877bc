"""The page of ``offrl view``: how long it takes to make, and a browser to open it.

    python benchmarks/view.py [--repeats 5] [--rendered 4]

Pages are made of the 200 demonstrations of Lift that ship, without films and with some rendered, by
one process and by two, in turns. They are opened from files in Chromium: from the command to go
there to the first episode's plots, which is when one can work; then from a click to another
episode's. So is a page of 5000 episodes.
"""

from __future__ import annotations

import argparse
import shutil
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from measure import alternate, machine, markdown, ratio, spread, timed
from playwright.sync_api import sync_playwright

from offrl.data.writer import DemoWriter
from offrl.reports.view import FilmOptions, write_view

LIFT = Path(__file__).parents[1] / "datasets/lift/low_dim.hdf5"


def making(path: Path, folder: Path, workers: int, rendered: int = 0) -> Callable[[], None]:
    def work() -> None:
        shutil.rmtree(folder, ignore_errors=True)
        write_view([str(path)], folder, FilmOptions(rendered, size=128), workers)

    return work


def write_many(path: Path, num_demos: int, steps: int = 30) -> Path:
    rng = np.random.default_rng(0)
    with DemoWriter(path, durable=False) as writer:
        for _ in range(num_demos):
            arrays = {"actions": rng.random((steps, 7)), "rewards": rng.random(steps)}
            writer.write({**arrays, "obs/position": rng.random((steps, 10))})
    return path


def opening(browser: Any, folder: Path, repeats: int) -> tuple[list[float], list[float]]:
    """Seconds to the first episode's plots, and from a click to those of the fourth."""
    opened, clicked = [], []
    for _ in range(repeats):
        page = browser.new_page(viewport={"width": 1400, "height": 900})
        began = time.perf_counter()
        page.goto(f"file://{folder}/index.html")
        page.wait_for_selector("#plot-list canvas")
        opened.append(time.perf_counter() - began)
        began = time.perf_counter()
        page.locator("#list .row").nth(3).click()
        page.wait_for_function("document.querySelector('#films b').innerText === 'demo_3'")
        clicked.append(time.perf_counter() - began)
        page.close()
    return opened, clicked


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--rendered", type=int, default=4, help="episodes that are filmed")
    parser.add_argument("--episodes", type=int, default=5000, help="of the large page")
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as name, sync_playwright() as driver:
        root = Path(name)
        rows = []
        for what, rendered in (("no films", 0), (f"{args.rendered} films", args.rendered)):
            makers = {str(n): timed(making(LIFT, root / f"lift{n}", n, rendered)) for n in (1, 2)}
            seconds = alternate(makers, args.repeats, warm_up=False)
            faster = f"{ratio(seconds['1'], seconds['2']):.2f}"
            rows.append([f"200 episodes, {what}", *map(spread, seconds.values()), faster])
        many = write_many(root / "many.hdf5", args.episodes)
        seconds = alternate(
            {str(n): timed(making(many, root / f"many{n}", n)) for n in (1, 2)}, 1, warm_up=False
        )
        faster = f"{ratio(seconds['1'], seconds['2']):.2f}"
        rows.append([f"{args.episodes} episodes, no films", *map(spread, seconds.values()), faster])
        print(f"{machine()}\n")
        print(markdown(["make, s", "1 process", "2 processes", "times faster"], rows))

        browser = driver.chromium.launch(
            executable_path=shutil.which("chromium"), args=["--no-sandbox"]
        )
        pages = {"200 episodes": root / "lift1", f"{args.episodes} episodes": root / "many1"}
        rows = [
            [what, *map(spread, opening(browser, folder, args.repeats))]
            for what, folder in pages.items()
        ]
        print(markdown([f"open, s ({browser.version})", "first plots", "another episode"], rows))
        browser.close()


if __name__ == "__main__":
    main()
