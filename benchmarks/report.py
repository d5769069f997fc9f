"""Tables as Markdown and CSV, and the line that says where something was measured."""

import csv
import os
import shutil
import statistics
import subprocess
import textwrap
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

import torch

ROOT = Path(__file__).resolve().parent.parent
# What describes a machine, in reading order, and its libraries.
HARDWARE = ("device", "gpu", "cpu", "cores", "threads", "left_out")
LIBRARIES = ("python", "torch", "gymnasium", "ale_py", "cv2", "ignite", "numpy", "numba", "envpool")
Machine = Mapping[str, str | int | float]  # of ``lib.training.machine.describe_machine``


def write_table(
    path_without_suffix: Path,
    title: str,
    header: Sequence[str],
    rows: Sequence[Sequence[str]],
    notes: Sequence[str],
) -> str:
    """Write a table as Markdown, with title and notes, and as CSV; return the Markdown."""
    table = [header, ["---"] * len(header), *rows]
    lines = ["| " + " | ".join(cell.replace("|", "\\|") for cell in row) + " |" for row in table]
    text = "\n".join([f"# {title}", "", *(f"- {note}" for note in notes), "", *lines]) + "\n"
    Path(f"{path_without_suffix}.md").write_text(text, encoding="utf-8")
    write_csv(Path(f"{path_without_suffix}.csv"), [header, *rows])
    return text


def fitted(header: Sequence[str], rows: Sequence[Sequence[str]], first: Sequence[str]) -> str:
    """Return the columns that fit the terminal, ``first`` before others; brackets get own lines."""
    room = shutil.get_terminal_size().columns
    named = [header, *([row[0].partition(" (")[0], *row[1:]] for row in rows)]
    widths = [max(map(len, cells)) + 2 for cells in zip(*named, strict=True)]
    shown, left = [0], room - widths[0] + 2
    order = [header.index(name) for name in first if name in header]
    for column in dict.fromkeys([*order, *range(1, len(header))]):
        if widths[column] <= left:
            shown.append(column)
            left -= widths[column]
    lines = []
    for cells, row in zip(named, [header, *rows], strict=True):
        others = (cells[column].rjust(widths[column]) for column in sorted(shown)[1:])
        lines.append(cells[0].ljust(widths[0] - 2) + "".join(others))
        details = row[0].partition(" (")[2].removesuffix(")")
        lines += textwrap.wrap(details, room, initial_indent="  ", subsequent_indent="  ")
    return "\n".join(lines)


def write_csv(path: Path, rows: Iterable[Iterable[object]]) -> None:
    """Write rows as CSV, the header first."""
    with open(path, "w", newline="", encoding="utf-8") as file:
        csv.writer(file, lineterminator="\n").writerows(rows)


def here(machine: Machine) -> str:
    """Return the note on the place of a measurement: the machine, its versions and the commit."""
    # These limit torch to the vector units of an older machine.
    asked = [
        f"{n}={os.environ[n]}"
        for n in ("ATEN_CPU_CAPABILITY", "ONEDNN_MAX_CPU_ISA")
        if n in os.environ
    ]
    vectors = ", ".join([torch.backends.cpu.get_cpu_capability(), *asked])
    return f"Machine: {join_machine(machine)}; {vectors}; commit {commit() or 'unknown'}"


def join_machine(machine: Machine, names: Iterable[str] = (*HARDWARE, *LIBRARIES)) -> str:
    """Join a machine and its versions in one line."""
    known = {name: machine[name] for name in names if name in machine}
    return ", ".join(
        f"{name} {value:g}" if isinstance(value, float) else f"{name} {value}"
        for name, value in known.items()
    )


def commit() -> str:
    """Return this tree's commit, with "-dirty" if files were changed since, or "" without git."""
    command = ["git", "describe", "--always", "--dirty", "--exclude", "*"]
    try:
        return subprocess.check_output(command, cwd=ROOT, stderr=subprocess.PIPE).decode().strip()
    except (OSError, subprocess.CalledProcessError):
        return ""  # not a clone, or git is not installed


def in_rows(numbers: Iterable[int]) -> str:
    """Join whole numbers as ranges: ``0-2, 7``."""
    rows: list[list[int]] = []
    for number in sorted(numbers):
        if rows and number == rows[-1][-1] + 1:
            rows[-1].append(number)
        else:
            rows.append([number])
    return ", ".join(f"{row[0]}-{row[-1]}" if len(row) > 1 else f"{row[0]}" for row in rows)


def spread(values: Sequence[float], digits: int | None = None) -> str:
    """Return median and range: ``38.2 (37.0 to 39.1)``; one digit by default, none from 100 on."""
    if not values:
        return ""
    middle = statistics.median(values)
    digits = (1 if middle < 100 else 0) if digits is None else digits
    text, low, high = (f"{v:,.{digits}f}" for v in (middle, min(values), max(values)))
    return text if low == high else f"{text} ({low} to {high})"
