"""The figures of README.md and results/README.md, against the events of the kept runs."""

import re
from collections import defaultdict
from functools import cache
from pathlib import Path
from statistics import median

import pytest

from benchmarks.records import Record, read_records
from benchmarks.report import spread
from benchmarks.table import BASELINE, BOOK, fps_to_01

ROOT = Path(__file__).parents[1]
ZEN5, XEON = ROOT / "results/epyc-zen5-2core", ROOT / "results/xeon-amx-2core"
RECORD, FPS, SOLVED = ZEN5 / "held-out/runs", ZEN5 / "ladder-amp/runs", "solved/runs"


@cache
def runs(*folders: Path) -> dict[str, list[Record]]:
    """The runs below the folders, by their rung; of 04 those that begin as the chapter's do."""
    found = defaultdict(list)
    for record in (record for folder in folders for record in read_records(folder)):
        if not record.script.startswith("04") or not record.settings["noop_max"]:
            found[record.script].append(record)
    return found


def table(page: str, heading: str) -> dict[str, list[str]]:
    """The cells of the table below a heading, by its first column, without links and bold type."""
    text = re.sub(r"\[([^]]*)\]\([^)]*\)", r"\1", (ROOT / page).read_text(encoding="utf-8"))
    text = text.replace("**", "").split(f"\n## {heading}\n")[1]
    lines = [line for line in text.split("\n## ")[0].splitlines() if line.startswith("| ")]
    cells = ([cell.strip(" `") for cell in line.split("|")[1:-1]] for line in lines)
    return {name: others for name, *others in cells}


def fps(script: str) -> float:
    return median(record.fps for record in runs(FPS)[script])


def fps_change(script: str) -> float:
    """Against the run of 01 beside each."""
    beside = [record for records in runs(FPS).values() for record in records]
    return median(fps_to_01(record, beside) for record in runs(FPS)[script])


def frames(script: str) -> float:
    return median(record.to_bar[0] for record in runs(XEON / SOLVED, ZEN5 / SOLVED)[script])


def minutes(script: str) -> float:
    return frames(script) / fps(script) / 60


def told(value: float, change: float) -> str:
    return f"{value:.0f}" + f" ({100 * (change - 1):+.0f} %)" * (change != 1)


@pytest.mark.parametrize("script", BOOK)
def test_the_rungs_of_the_chapter(script: str) -> None:
    cells = table("README.md", "The chapter's rungs")[f"{script}.py"]
    (book_fps, _), (book_minutes, _) = BOOK[script]
    (base_fps, _), (base_minutes, _) = BOOK[BASELINE]
    here = told(minutes(script), minutes(script) / minutes(BASELINE)) if script[1] != "0" else ""
    assert cells[1:] == [
        told(book_fps, book_fps / base_fps),
        told(book_minutes, book_minutes / base_minutes),
        told(fps(script), fps_change(script)),
        here,  # 00 learns what 01 learns, bit for bit
    ]


@pytest.mark.parametrize("script", ["05_vector_env", "06_compiled_update", "09_many_machines"])
def test_the_rungs_beyond_the_book(script: str) -> None:
    cells = table("README.md", "Beyond the book")[f"{script}.py"]
    assert cells[1:] == [f"{fps(script):.0f}", f"{frames(script):,.0f}", ""]


def test_the_frames_to_17() -> None:
    cells = table("results/README.md", "The book's rungs at 17")
    environments, parallel = "04, environments", "04, parallel"
    names = {"04_new_wrappers_n_env": environments, "04_new_wrappers_parallel": parallel}
    for script, records in runs(XEON / SOLVED, ZEN5 / SOLVED).items():
        (name,) = [c for c in cells if c.split(", two")[0] == names.get(script, script[:2])]
        assert cells[name][0] == f"{median(record.to_bar[0] for record in records):,.0f}"


@pytest.mark.parametrize("script", ["07_speedrun", "08_recompiled_pong"])
def test_the_record(script: str) -> None:
    records = runs(RECORD)[script]
    assert [record.solved for record in records] == [True] * 10
    frames, minutes = zip(*(record.to_bar for record in records), strict=True)
    until_17, until_won = spread(minutes, 1), spread([one.minutes for one in records], 1)
    middle_fps = median(record.fps for record in records)
    cells = table("README.md", "Beyond the book")[f"{script}.py"]
    assert cells[1:] == [f"{middle_fps:,.0f}", f"{median(frames):,.0f}", until_17]
    cells = table("results/README.md", "The record")[script[:2]]
    assert cells[1:] == ["10 of 10", until_17, spread(frames, 0), until_won]
    if script[1] == "8":
        readme = (ROOT / "README.md").read_text(encoding="utf-8").replace("**", "").split("##")[0]
        words = " ".join(readme.split())
        assert f"in {until_17.replace(' (', ' minutes (')}" in words
        assert f"in a row after {until_won}" in words
