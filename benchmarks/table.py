"""Write a table and a chart of runs from their TensorBoard events alone.

Each RUN is the folder of a run, or a folder with runs somewhere below, finished or not. A line of
the table is one setting of a rung at one commit on one machine; only seeds differ. --every adds
learning curves, and a line for each run.

    python -m benchmarks table runs/first runs/second --every 100000

Files: table.md, table.csv, runs.csv (a line per run: exact numbers and all settings), table.png
(avg_reward over frames and minutes); with --curves a csv of each run's episodes. docs/benchmarks.md
explains the columns.
"""

import argparse
import runpy
import textwrap
from collections import Counter
from collections.abc import Hashable, Mapping, Sequence, Set
from dataclasses import fields
from functools import cache
from pathlib import Path
from statistics import mean, median, pstdev
from typing import Any, get_type_hints

from benchmarks import UserError, charts
from benchmarks.measuring import positive
from benchmarks.records import Record, Setting, read_records
from benchmarks.report import (
    HARDWARE,
    ROOT,
    fitted,
    in_rows,
    join_machine,
    spread,
    write_csv,
    write_table,
)
from lib.printing import plural

import numpy as np

HOUR = 3_600.0  # seconds
HELD_OUT = 1_000  # seeds from here on are for published figures, never for choosing settings
NOTE = "Medians over the seeds (and their range); docs/benchmarks.md explains the columns."
BOUND_NOTE = '">" is a lower bound: an unsolved run counts with what it played until it ended.'
BOOK_NOTE = "The book: second edition (GTX 1080 Ti); third edition (a newer GPU, solved at 18)."
BASELINE = "01_baseline"
WHOLE_WAY = 2_000_000  # frames; a run that may play this many is one to 17
MEASURING = {"amp", "epsilon_frames", "replay_initial"}  # flags of `ladder --frames`
FIRST = ("solved", "FPS", "minutes", "frames", "machine", "avg_reward")  # in a narrow terminal
# The chapter's figures: FPS, then minutes, of its second and its third edition.
BOOK = {
    "00_slow_grads": ((157, 219), (115, 51.0)),
    BASELINE: ((159, 229), (105, 52.2)),
    "02_n_envs": ((228, 395), (44, 36.0)),
    "03_parallel": ((402, 290), (59, 31.2)),
    "04_new_wrappers_n_env": ((330, 448), (40, 47.4)),
    "04_new_wrappers_parallel": ((409, 325), (31, 30.0)),
}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add this subcommand's flags."""
    parser.add_argument("runs", type=Path, nargs="+", metavar="RUN", help="folders of runs")
    text = "add the learning curve, in columns of N frames, and a line for every run"
    parser.add_argument("--every", type=positive, metavar="N", help=text)
    text = "write the episodes of each run, too: curves/RUN.csv"
    parser.add_argument("--curves", action="store_true", help=text)
    text = "folder for the table (default: RUN if there is only one, otherwise runs/table)"
    parser.add_argument("--out", type=Path, metavar="FOLDER", help=text)


def run(args: argparse.Namespace) -> int:
    """Read the runs; write and print the table, draw the chart."""
    records, left_out = drop_repeated(read_all(args.runs))
    ladder = sorted(records, key=lambda record: (record.script, record.seed))
    settings: dict[Hashable, list[Record]] = {}
    for record in ladder:
        settings.setdefault((record.setting, record.commit), []).append(record)
    groups = list(settings.values())
    edges = range(0, max(record.frames for record in records), args.every) if args.every else ()
    shared = shared_changes(groups)
    rows: list[dict[str, str]] = []
    names: dict[str, list[Record]] = {}
    for runs in groups:
        name = label(runs[0], groups, shared)
        parts = [runs, *([one] for one in runs if args.every and len(runs) > 1)]
        rows += [row(name, part, groups) | learning_curve(part, edges) for part in parts]
        machine = f", machine {rows[-1]['machine']}" * bool(rows[-1]["machine"])
        names.setdefault(name + machine, []).extend(runs)
    header = [name for name in rows[0] if any(cells[name] for cells in rows)]
    table = [[cells[name] for name in header] for cells in rows]
    notes = [*describe(ladder), NOTE]
    text = ", ".join(_shown(*one) for one in shared.items())
    notes += [f"Changed from the defaults in all runs that have them: {text}."] * bool(shared)
    notes += [BOUND_NOTE] * any("> " in cell for cells in table for cell in cells)
    notes += [BOOK_NOTE] * any(name.startswith("book") for name in header)
    notes += [f"Left out: {left_out} unfinished runs that were later repeated."] * bool(left_out)
    out = args.out or (args.runs[0] if len(args.runs) == 1 else Path("runs/table"))
    out.mkdir(parents=True, exist_ok=True)
    write_table(out / "table", "Runs", header, table, notes)
    no_settings = dict.fromkeys(sorted({name for one in records for name in one.settings}), "")
    lines = [numbers(one, records) | no_settings | one.settings for one in records]
    write_csv(out / "runs.csv", [[*lines[0]], *(line.values() for line in lines)])
    for number, record in enumerate(records if args.curves else ()):
        same = sum(other.folder.name == record.folder.name for other in records[:number])
        file = out / "curves" / f"{record.folder.name}{f'-{same}' * bool(same)}.csv"
        file.parent.mkdir(exist_ok=True)
        curves = vars(record.curves)
        write_csv(file, [[*curves], *zip(*curves.values(), strict=True)])
    seeds = f"seeds {in_rows({record.seed for record in records})}"
    hardware = [join_machine(machine, HARDWARE) for machine in machines_of(ladder)]
    charts.reward_chart(out / "table.png", names, "; ".join([*hardware, seeds]))
    printed = [textwrap.fill(note, 80, subsequent_indent="  ") for note in notes]
    printed += ["", fitted(header, table, FIRST), "", f"all columns: {out}/table.md"]
    print("\n".join(printed))  # in one call, because a pipe to head may close
    return 0


def read_all(folders: Sequence[Path]) -> list[Record]:
    """Return the runs below the folders, each once."""
    records: dict[Path, Record] = {}
    for folder in folders:
        found = read_records(folder)
        if not found:
            raise UserError(f"no run of a rung below {folder}: no TensorBoard events tell of one")
        records |= {record.folder.resolve(): record for record in found}
    return list(records.values())


def drop_repeated(records: Sequence[Record]) -> tuple[list[Record], int]:
    """Drop and count the unfinished runs whose repetition is finished."""
    in_order = sorted(records, key=lambda record: record.started)
    last = {(one.seed, one.setting): one.started for one in in_order if one.finished}
    kept = [o for o in records if o.finished or o.started > last.get((o.seed, o.setting), 0.0)]
    return kept, len(records) - len(kept)


@cache
def defaults(script: str) -> dict[str, Any]:
    """Return a rung's defaults, except for settings that a resumed run may change."""
    try:
        hints = get_type_hints(runpy.run_path(str(ROOT / f"{script}.py"))["train"])
    except OSError:  # a rung of the past
        return {}
    settings = fields(next(iter(hints.values())))
    return {e.name: e.default for e in settings if not e.metadata["may_change"]}


def changed(run: Record) -> dict[str, Setting]:
    """Return the settings of a run that are not its rung's defaults."""
    usual, settings = defaults(run.script), run.settings
    names = usual.keys() & settings.keys() - {"cuda", "device"}  # these are in the machine
    return {n: settings[n] for n in names if usual[n] not in (settings[n], "auto")}


def shared_changes(groups: Sequence[Sequence[Record]]) -> dict[str, Setting]:
    """Return the changed settings that all runs with that setting share, except the game."""
    runs, shared = [group[0] for group in groups], dict[str, Setting]()
    for name in sorted({name for run in runs for name in changed(run)} - {"env"}):
        values = [changed(run).get(name) for run in runs if name in run.settings]
        if len(values) > 1 and len(set(values)) == 1 and values[0] is not None:
            shared[name] = values[0]
    return shared


def label(record: Record, groups: Sequence[Sequence[Record]], shared: Mapping[str, Setting]) -> str:
    """Return the rung and its changed settings, except those that all groups share."""
    known, changes = defaults(record.script), changed(record)
    others = [_all_settings(group[0]) for group in groups if group[0].script == record.script]
    parts = []
    for name, value in sorted(_all_settings(record).items()):
        (usual, times), *rest = Counter(o[name] for o in others if name in o).most_common()
        # Of settings without a known default, those that differ from most runs of the rung.
        unusual = bool(rest) and (value != usual or rest[0][1] == times)
        if name in changes.keys() - shared.keys() or (name not in known and unusual):
            parts.append(_shown(name, value))
    return f"{record.script} ({', '.join(parts)})" if parts else record.script


def _all_settings(record: Record) -> dict[str, Setting]:
    mine = {name: record.machine.get(name, "") for name in ("threads", "left_out")}
    return record.settings | mine | {"commit": record.commit}


def _shown(name: str, value: Setting) -> str:
    if name == "env":
        return str(value).removesuffix("NoFrameskip-v4")
    if isinstance(value, str):
        return f"{name} {value or 'none'}"
    return f"{name} " + (f"{value:,.0f}" if float(value).is_integer() else f"{value:g}")


def machines_of(records: Sequence[Record]) -> list[dict[str, Setting]]:
    """Return the machines of the runs, each once, whatever their threads."""
    return list({frozenset(one.hardware.items()): one.hardware for one in records}.values())


def comparable(run: Record, other: Record, may_differ: Set[str]) -> bool:
    """Return whether two runs share game, precision, machine, and the settings that both have."""
    mine, theirs, both = changed(run), changed(other), run.settings.keys() & other.settings.keys()
    equal = all(mine.get(name) == theirs.get(name) for name in both - may_differ)
    return equal and run.machine == other.machine and run.bfloat16 == other.bfloat16


def describe(records: Sequence[Record]) -> list[str]:
    """Return the notes above a table: the machines and the runs."""
    machines = machines_of(records)
    bars = sorted({record.bar for record in records if record.bar is not None})
    unfinished = sum(not record.finished for record in records)
    text = f"Runs: {len(records)}, {unfinished} of them unfinished"
    threads = {int(r.machine["threads"]) for r in records if "threads" in r.machine}
    text += f"; threads {in_rows(threads)}" * bool(threads)
    commits = sorted({record.commit for record in records} - {""})
    text += f"; solved: avg_reward reached {' or '.join(map('{:g}'.format, bars))}" * bool(bars)
    text += f"; commit {', '.join(commits) or 'unknown'}"
    low = [record for record in records if record.bfloat16]
    if 0 < len(low) < len(records):
        scripts = ", ".join(sorted({record.script for record in low}))
        text += f"; {plural(len(low), 'run')} of {scripts} in bfloat16, the others in float32: "
        text += "do not compare their FPS"
    names = [f"Machine {n}" for n in range(1, len(machines) + 1)] if machines[1:] else ["Machine"]
    described = map(join_machine, machines)
    return [*(f"{name}: {one}" for name, one in zip(names, described, strict=True)), text]


def row(name: str, runs: Sequence[Record], groups: Sequence[Sequence[Record]]) -> dict[str, str]:
    """Return the table's line for the runs of one setting on one machine."""
    records = [record for group in groups for record in group]
    machines = machines_of(records)
    solved = [record.solved for record in runs]
    group, limit = next(g for g in groups if runs[0] in g), runs[0].settings.get("max_frames", 0)
    to_17 = limit == 0 or float(limit) >= WHOLE_WAY or any(one.solved for one in group)
    to_17 &= runs[0].bar is not None and runs[0].settings.get("epsilon_frames") != 1  # for FPS
    certain = [one or not to_17 for one in solved]  # runs not to 17 end as planned
    frames, minutes = zip(*(one.cost for one in runs), strict=True)
    won = summary([one.minutes for one in runs], certain, "{:,.1f}")
    unfinished = sum(not record.finished for record in runs)
    seeds = [record.seed for record in runs]
    ratios = [ratio for one in runs if (ratio := fps_to_01(one, records)) is not None]
    shares = [share for one in runs if (share := minutes_to_01(one, records)) is not None]
    rewards = [record.avg_reward for record in runs if record.avg_reward is not None]
    changes = set(changed(runs[0]))  # the book's figures are for the book's settings
    return {
        "rung": name,
        "machine": f"{machines.index(runs[0].hardware) + 1}" if machines[1:] else "",
        "seeds": in_rows(seeds) + " (held out)" * (min(seeds) >= HELD_OUT),
        "solved": f"{sum(solved)} of {len(runs)}" + f", {unfinished} unfinished" * bool(unfinished),
        "FPS": spread([r.fps for r in runs if r.fps is not None]) or "did not train",
        "FPS / 01's": spread(ratios, 2 if max(ratios, default=0) < 10 else 1),
        "frames": summary(frames, certain, "{:,.0f}"),
        "minutes": summary(minutes, certain, "{:,.1f}"),
        "minutes / 01's": spread(shares, 2),
        "minutes: trial won": won if any(one.tried for one in runs) else "",
        "avg_reward": spread(rewards, 1) or "no game ended",
        "evaluation": spread([mean(r.evaluation) for r in runs if r.evaluation], 1),
        "book: FPS (/ 01's)": against_01(runs[0].script, 0) if changes <= MEASURING else "",
        "book: minutes (/ 01's)": against_01(runs[0].script, 1) if changes <= {"amp"} else "",
    }


def against_01(script: str, which: int) -> str:
    """Return the book's figures of a rung and their ratios to its 01, for both editions."""
    if script not in BOOK:
        return ""
    pairs = zip(BOOK[script][which], BOOK[BASELINE][which], strict=True)
    ratio = "" if script == BASELINE else " ({:.2f})"
    return "; ".join(f"{value:g}{ratio.format(value / base)}" for value, base in pairs)


def fps_to_01(run: Record, records: Sequence[Record]) -> float | None:
    """Return the ratio of FPS to the nearest comparable run of 01 within the hour, or None."""

    def apart(other: Record) -> tuple[float, float]:
        first, second = sorted((run, other), key=lambda record: record.started)
        between = second.started - (first.started + 60 * first.minutes)
        return max(0.0, between), second.started - first.started

    baselines = [one for one in records if one.script == BASELINE and one.fps]
    near = [one for one in baselines if comparable(run, one, MEASURING)]
    nearest = min((one for one in near if apart(one)[0] <= HOUR), key=apart, default=None)
    return run.fps / nearest.fps if run.fps and nearest and nearest.fps else None


def minutes_to_01(run: Record, records: Sequence[Record]) -> float | None:
    """Return the ratio of minutes to a comparable run of 01 with the same seed, if both solved."""
    baselines = [one for one in records if one.script == BASELINE and one.solved]
    same = [one for one in baselines if comparable(run, one, {"amp"}) and one.seed == run.seed]
    minutes = [one.cost[1] for one in same]
    return run.cost[1] / minutes[0] if run.solved and minutes else None


def summary(values: Sequence[float], certain: Sequence[bool], form: str) -> str:
    """Return median and range; ">" marks a lower bound that depends on uncertain runs."""
    known, at_most = np.array(values, float), np.where(certain, values, np.inf)
    text, *ends = (
        "> " * bool(f(known) != f(at_most)) + form.format(f(known))
        for f in (np.median, np.min, np.max)
    )
    return text if len(set(ends)) == 1 else f"{text} ({' to '.join(ends)})"


def learning_curve(runs: Sequence[Record], edges: Sequence[int]) -> dict[str, str]:
    """Return reward / length of the games between two edges; a dash if not every run ended one."""
    cells, step = {}, edges.step if isinstance(edges, range) else 0
    for column, at in enumerate(edges):
        known = []  # mean reward and length, of each run with games
        for one in runs:
            number = (one.curves.frames - 1) // step  # column of each game, by its last frame
            hold = len(runs) > 1 and one.solved and len(number)  # it keeps its last column
            games = number == (min(column, number[-1]) if hold else column)
            if games.any():
                known.append((one.curves.reward[games].mean(), one.curves.steps[games].mean()))
        text = "-"
        if len(known) == len(runs):
            rewards, steps = zip(*known, strict=True)
            text = f"{spread(rewards, 1)} / {median(steps):,.0f}"
        cells[f"{at / 1_000:,g}-{(at + step) / 1_000:,g}"] = text
    return cells


def numbers(run: Record, records: Sequence[Record]) -> dict[str, Any]:
    """Return a run's line of runs.csv, without its settings."""
    games = run.evaluation
    values: dict[str, Any] = {"script": run.script, "seed": run.seed, "fps": run.fps}
    values |= {"minutes": run.minutes, "frames": run.frames, "avg_reward": run.avg_reward}
    values |= {"solved": int(run.solved), "finished": int(run.finished)}
    values |= {"evaluation": mean(games) if games else None}
    values |= {"evaluation_sd": pstdev(games) if games else None}
    values |= {"fps_to_01": fps_to_01(run, records), "commit": run.commit}
    values |= {"machine": join_machine(run.machine), "folder": run.folder.name}
    return {name: f"{v:.3f}" if isinstance(v, float) else v for name, v in values.items()}
