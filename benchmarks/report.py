"""Tables as Markdown and CSV, and the line that says what machine they come from."""

import csv
import statistics
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

from benchmarks import UserError

# What describes a machine, in the order of a sentence; everything else is a library's version.
HARDWARE = ("device", "gpu", "cpu", "cores", "threads")
LIBRARIES = ("python", "torch", "gymnasium", "ale_py", "cv2", "ignite", "numpy")


def write_table(
    path_without_suffix: Path,
    title: str,
    header: list[str],
    rows: list[list[str]],
    notes: list[str],
) -> None:
    """Write a table as Markdown, with its title and notes, and as bare CSV.

    Args:
        path_without_suffix: ``.md`` and ``.csv`` are appended; missing folders are made.
        title: the heading of the Markdown file.
        header: the names of the columns, with their units.
        rows: the cells as they should read.
        notes: a line each above the table: the machine, the seeds, what to know.
    """
    path_without_suffix.parent.mkdir(parents=True, exist_ok=True)
    text = markdown(title, header, rows, notes)
    Path(f"{path_without_suffix}.md").write_text(text, encoding="utf-8")
    with open(f"{path_without_suffix}.csv", "w", newline="", encoding="utf-8") as file:
        csv.writer(file, lineterminator="\n").writerows([header, *rows])


def markdown(title: str, header: list[str], rows: list[list[str]], notes: list[str]) -> str:
    """The same table as text."""
    lines = [f"# {title}", ""]
    for note in notes:
        lines += [f"- {note}"]
    lines += ["", _line(header), _line(["---"] * len(header)), *map(_line, rows)]
    return "\n".join(lines) + "\n"


def output_folder(path: Path) -> Path:
    """Make the folder that results are written to, before anything is measured."""
    try:
        path.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise UserError(f"cannot write to {path}: {error.strerror}") from None
    return path


def join_machine(machine: Mapping[str, str | int | float]) -> str:
    """A machine, as ``lib.run.describe_machine`` gives it, in one line."""
    hardware = [f"{name} {_number(machine[name])}" for name in HARDWARE if name in machine]
    versions = [f"{name} {machine[name]}" for name in LIBRARIES if name in machine]
    return ", ".join(hardware + versions)


def short_machine(machine: Mapping[str, str | int | float]) -> str:
    """As ``join_machine``, for the corner of a figure."""
    return (
        f"{machine.get('device', '?')}; GPU {machine.get('gpu', '?')}; "
        f"CPU {machine.get('cpu', '?')}, {_number(machine.get('cores', '?'))} cores; "
        f"torch {machine.get('torch', '?')}"
    )


def seeds_of(seeds: Iterable[int]) -> str:
    """The seeds that were run, each once: ``seeds 0, 1, 2``."""
    return "seeds " + ", ".join(str(seed) for seed in sorted(set(seeds)))


def spread(values: Sequence[float]) -> str:
    """Median, and the range where there is one: ``38.2 (37.0-39.1)``."""
    if not values:
        return ""
    digits = 1 if statistics.median(values) < 100 else 0
    middle, low, high = (
        f"{value:,.{digits}f}" for value in (statistics.median(values), min(values), max(values))
    )
    return middle if len(values) == 1 else f"{middle} ({low}-{high})"


def change(values: Sequence[float], base: Sequence[float]) -> str:
    """How much more or less the median is than another one: ``+43 %``."""
    if not values or not base:
        return ""
    return f"{(statistics.median(values) / statistics.median(base) - 1) * 100:+.0f} %"


def _number(value: str | int | float) -> str:
    return f"{value:g}" if isinstance(value, float) else str(value)


def _line(cells: list[str]) -> str:
    return "| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |"
