"""Take pictures of TensorBoard with the runs below a folder.

Writes tensorboard-scalars.png (the curves that matter, by relative time) and
tensorboard-hparams.png (the runs with their outcome). It needs a browser, and a library that
controls it:

    apt-get install chromium
    .venv/bin/pip install -r requirements-screenshot.txt
    .venv/bin/python -m benchmarks screenshot results/mine/runs --out results/mine
"""

import argparse
import re
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

from benchmarks import Failed, UserError
from benchmarks.arguments import add_out
from benchmarks.report import output_folder
from lib.run import EVENT_FILES

CARDS = r"^(episodes/(avg_reward|reward|steps)|train/avg_fps)$"
SMOOTHING = 0.8  # of the curves that jump from game to game; pale behind them as they are
# Columns of the HPARAMS tab; those that the runs do not have are left out.
COLUMNS = ("rung", "script", "seed")
METRICS = ("frames", "minutes", "seconds", "fps", "avg_reward", "solved")
SIZE = {"width": 1400, "height": 860}  # pixels
WIDTH, HEAD, LINE = 1_750, 260, 36  # of the table of runs, so that all of it is seen
MOST_LINES = 40
BROWSERS = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable", "chrome")
QUIET = ["gpu", "quic", "background-networking", "component-update", "sync"]
START_SECONDS = 120.0
PATIENCE_MS = 60_000


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the flags of this subcommand."""
    parser.add_argument("folder", type=Path, metavar="FOLDER", help="where the runs are")
    parser.add_argument(
        "--only",
        default="",
        metavar="REGEX",
        help="curves of runs whose names match (default: all)",
    )
    parser.add_argument("--browser", metavar="PATH", help="Chromium or Chrome (default: found)")
    add_out(parser, "runs")


def run(args: argparse.Namespace) -> int:
    """Start TensorBoard, and take the pictures."""
    try:
        from playwright.sync_api import Error, sync_playwright
    except ImportError:
        raise UserError("no playwright: pip install -r requirements-screenshot.txt") from None
    browser = args.browser or next(filter(None, map(shutil.which, BROWSERS)), None)
    if browser is None:
        raise UserError("no Chromium or Chrome was found: give its path with --browser")
    runs = {file.parent for file in args.folder.rglob(EVENT_FILES)}
    if not runs:
        raise UserError(f"no run below {args.folder}: there are no TensorBoard events")
    out = output_folder(args.out)
    lines = min(len(runs), MOST_LINES)
    with tensorboard(args.folder) as address, sync_playwright() as playwright:
        try:
            program = playwright.chromium.launch(
                executable_path=browser,
                chromium_sandbox=False,
                args=[f"--disable-{feature}" for feature in QUIET],
            )
            page = program.new_page(viewport=SIZE)
            page.set_default_timeout(PATIENCE_MS)
            curves(page, address, args.only)
            picture(page, out / "tensorboard-scalars.png")
            page.set_viewport_size({"width": WIDTH, "height": HEAD + LINE * lines})
            table_of_runs(page, address)
            picture(page, out / "tensorboard-hparams.png")
            program.close()
        except Error as error:
            raise Failed(f"TensorBoard in {browser}: {error.message.splitlines()[0]}") from None
    print(f"written to {out}")
    return 0


@contextmanager
def tensorboard(folder: Path) -> Iterator[str]:
    """A TensorBoard that shows the folder; gives its address."""
    command = [sys.executable, "-m", "tensorboard.main", "--logdir", str(folder)]
    command += ["--host", "127.0.0.1", "--port", "0", "--load_fast", "false"]
    with tempfile.NamedTemporaryFile("w+") as log:
        process = subprocess.Popen(command, stdout=log, stderr=subprocess.STDOUT)
        try:
            deadline = time.monotonic() + START_SECONDS
            while not (found := re.search(r"http://127\.0\.0\.1:\d+/", Path(log.name).read_text())):
                if process.poll() is not None or time.monotonic() > deadline:
                    raise Failed("TensorBoard did not start: python -m tensorboard.main shows why")
                time.sleep(0.1)
            yield found[0]
        finally:
            process.terminate()
            process.wait()


def curves(page: Any, address: str, runs: str) -> None:
    """Open the time series over relative time, with four curves in view."""
    query = {"tagFilter": CARDS, "runFilter": runs, "smoothing": SMOOTHING}
    page.goto(f"{address}?{urlencode(query)}#timeseries")
    page.locator("card-view").first.wait_for()
    page.get_by_label("Enable step selection and data table").uncheck()
    page.locator(".x-axis-type mat-select").click()
    page.get_by_role("option", name="Relative").click()


def table_of_runs(page: Any, address: str) -> None:
    """Open the HPARAMS tab, with only the columns that matter."""
    page.goto(f"{address}#hparams")
    page.reload()
    page.locator(".hparam-checkbox").first.wait_for()
    for kind, wanted in (("hparam", COLUMNS), ("metric", METRICS)):
        for box in page.locator(f".{kind}-checkbox").all():
            name = box.inner_text().strip().removeprefix("outcome/")
            if (box.get_attribute("aria-checked") == "true") != (name in wanted):
                box.click()
    page.locator(".hparam-checkbox").first.scroll_into_view_if_needed()


def picture(page: Any, path: Path) -> None:
    """Take a picture once nothing is loading any more."""
    page.wait_for_load_state("networkidle")
    page.wait_for_timeout(3_000)  # curves are drawn after their data came
    page.mouse.move(0, 0)
    page.screenshot(path=path)
