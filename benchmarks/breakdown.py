"""Show where the time of an iteration goes, and who works while others wait.

Each rung runs under torch's profiler, its player process too, with a name around the functions
that play, choose actions, learn and wait. A table says what every part takes; a time line shows the
first milliseconds of the same trace. FPS are measured before the profiler starts, which makes a
rung slower. Flags after -- go to every rung.

    python -m benchmarks breakdown 01_baseline 03_parallel
    python -m benchmarks breakdown 01_baseline 02_n_envs --amp
    python -m benchmarks breakdown 01 03 05 08 --milliseconds 100     README's time line

Files: breakdown.md, breakdown.csv, timeline.csv, timeline.png, and for each rung a
folder with its traces, which open in ui.perfetto.dev, and torch's table of its longest operators.
"""

import argparse
import gzip
import json
import sys
import tempfile
from collections import defaultdict
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import NamedTuple

from benchmarks import Failed, charts
from benchmarks.arguments import add_counts, add_out, add_training, suffix, where
from benchmarks.ladder import choose
from benchmarks.processes import output_of
from benchmarks.profiled import LAPS, MEASURED, PARTS, PLAYER, TRAINER, WARM_UP
from benchmarks.report import HARDWARE, here, join_machine, output_folder, write_csv, write_table
from benchmarks.timing import chosen_device
from lib.running.machine import describe_machine

REST = "rest (ignite, Python)"
LEARNS, CHOOSES, PLAYS, OTHER, WAITS = charts.ACTIVITIES
# Part of an iteration -> what it is called in the time line; else it is OTHER.
ACTIVITIES = {
    **dict.fromkeys(("sampling", "forward", "backward", "optimizer", "update"), LEARNS),
    **dict.fromkeys(("environment", "wrappers"), PLAYS),
    "choosing actions": CHOOSES,
    "waiting": WAITS,
}
START = "from benchmarks.profiled import main; main()"


class Span(NamedTuple):
    """A part of an iteration, and when it began and ended, in milliseconds."""

    part: str
    begin: float
    end: float


class Worker(NamedTuple):
    """Somebody who works for a rung: a process or a thread, and its spans without gaps."""

    rung: str
    fps: float
    frames: int  # of the time that was profiled
    name: str
    spans: list[Span]


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the flags of this subcommand."""
    text = "rungs by the beginning of their names, as 01 or 04_new_wrappers_p"
    parser.add_argument("rungs", nargs="+", metavar="RUNG", help=text)
    add_training(parser)
    counts = {
        "updates": (100, "updates that are timed, and again that are profiled"),
        "milliseconds": (100, "length of the time line"),
        "replay-initial": (1_000, "transitions to play before training begins"),
    }
    add_counts(parser, counts)
    add_out(parser, "runs/breakdown")
    parser.set_defaults(rung_flags=[])  # those after --


def run(args: argparse.Namespace) -> int:
    """Take the rungs apart, write tables, charts and traces."""
    device, out = chosen_device(args.cuda), output_folder(args.out).resolve()
    workers: list[Worker] = []
    for script in choose(args.rungs):
        print(script.stem, flush=True)
        workers += take_apart(script, args, out / f"{script.stem}{suffix(args)}")
    machine = describe_machine(device)
    title = f"Where an iteration goes, on the {where(args)}"
    rows = []
    for one in workers:
        spent = dict.fromkeys([*PARTS, REST], 0.0)
        for part, begin, end in one.spans:
            spent[part] += (end - begin) / one.frames
        whole = sum(spent.values())
        rows += [
            [one.rung, f"{one.fps:,.1f}", one.name, part, f"{ms:.3f}", f"{ms / whole:.1%}"]
            for part, ms in spent.items()
            if ms
        ]
    notes = [
        here(machine),
        f"Seed 0, epsilon {args.epsilon:g}; FPS over {args.updates} updates after {WARM_UP} to "
        f"warm up, the parts over {args.updates} more, under torch's profiler",
        "A part is what its functions take without the parts that they call; 'update' is the loss, "
        "or all of an update that is one compiled function. On a GPU this is the CPU's time",
    ]
    header = ["rung", "FPS", "who", "part", "ms per frame", "share"]
    path = out / f"breakdown{suffix(args)}"
    print(write_table(path, title, header, rows, notes))
    lines = [
        (f"{w.rung}: {w.fps:,.0f} frames per second", w.name, list(first(args.milliseconds, w)))
        for w in workers
    ]
    charts.time_line(
        out / f"timeline{suffix(args)}.png",
        lines,
        args.milliseconds,
        join_machine(machine, HARDWARE),
    )
    spans = [[heading, who, *span] for heading, who, does in lines for span in does]
    header = ["rung", "who", "does", "begin_ms", "end_ms"]
    write_csv(out / f"timeline{suffix(args)}.csv", [header, *spans])
    print(f"written to {out}")
    return 0


def take_apart(script: Path, args: argparse.Namespace, folder: Path) -> Iterator[Worker]:
    """Run a rung under the profiler; who worked there."""
    output_folder(folder)
    flags = ["--stop-reward", "1e9", "--checkpoint-every", "0"]
    flags += ["--epsilon-start", f"{args.epsilon}", "--epsilon-final", f"{args.epsilon}"]
    flags += ["--cuda"] * args.cuda + ["--amp"] * args.amp
    if not script.stem.startswith(("07", "08")):  # these have no replay buffer
        flags += ["--replay-initial", f"{args.replay_initial}"]
    with tempfile.TemporaryDirectory() as runs:
        command = [sys.executable, "-c", START, str(folder), f"{args.updates}", script.name]
        output_of([*command, "--run-dir", runs, *flags, *args.rung_flags], script.stem)
    if not (folder / LAPS).exists():
        raise Failed(f"{script.stem} ended before {args.updates} updates were profiled")
    (f0, t0), (f1, t1), (f2, _), (f3, _) = json.loads((folder / LAPS).read_text())
    threads = read_trace(folder / TRAINER)
    main = next(n for n, spans in threads.items() if any(s.part == MEASURED for s in spans))
    (window,) = (span for span in threads[main] if span.part == MEASURED)
    workers = {"main process": [span for span in threads.pop(main) if span is not window]}
    if (folder / PLAYER).exists():
        (workers["player process"],) = read_trace(folder / PLAYER).values()
    elif threads:
        workers["its threads"] = [span for spans in threads.values() for span in spans]
    for name, spans in workers.items():
        whole = innermost(spans, window.begin, window.end)
        # Threads rest between the steps.
        kept = [span for span in whole if name != "its threads" or span.part != REST]
        yield Worker(script.stem, (f1 - f0) / (t1 - t0), f3 - f2, name, kept)


def read_trace(file: Path) -> dict[int, list[Span]]:
    """The named parts in a trace by thread, in milliseconds of a clock of all processes."""
    with gzip.open(file) as stream:
        trace = json.load(stream)
    threads: dict[int, list[Span]] = defaultdict(list)
    for event in trace["traceEvents"]:
        if event.get("cat") == "user_annotation" and event["name"] in (*PARTS, MEASURED):
            begin = event["ts"] / 1e3
            threads[event["tid"]].append(Span(event["name"], begin, begin + event["dur"] / 1e3))
    return threads


def innermost(spans: Iterable[Span], begin: float, end: float) -> Iterator[Span]:
    """What was done between two moments, which become 0 and so many milliseconds; without gaps.

    Of parts within each other the innermost counts. But what happens while an action is chosen, as
    the network's forward pass, belongs to choosing it.
    """
    edges = sorted(
        [(span.begin, 1, -span.end, span.part) for span in spans]
        + [(span.end, 0, -span.begin, span.part) for span in spans]
    )
    inside, since = [REST], begin
    for time, starts, _, part in [*edges, (end, 0, 0.0, "")]:
        time = min(max(time, begin), end)
        if time > since:
            chooses = "choosing actions" in inside
            yield Span("choosing actions" if chooses else inside[-1], since - begin, time - begin)
            since = time
        if starts:
            inside.append(part)
        elif part in inside:
            inside.reverse()
            inside.remove(part)
            inside.reverse()


def first(milliseconds: float, worker: Worker) -> Iterator[tuple[str, float, float]]:
    """What somebody did at first, for the time line."""
    for part, begin, end in worker.spans:
        if begin < milliseconds:
            activity = ACTIVITIES.get(part, OTHER)
            yield activity, round(begin, 3), min(round(end, 3), float(milliseconds))
