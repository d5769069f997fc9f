"""Show where the time of an iteration goes, and who works while others wait.

Each rung, with its player process, runs under torch's profiler. A table shows the time of playing,
choosing actions, learning and waiting; a timeline shows the first milliseconds. FPS are measured
before the profiler starts, because it slows a rung down; only in a player process is it on from the
start. Flags after -- go to every rung.

    python -m benchmarks breakdown 01_baseline 03_parallel -- --amp
    python -m benchmarks breakdown 01 03 05 08 --milliseconds 300    results/timeline.png

Files: breakdown.md, breakdown.csv, breakdown.png, timeline.png, and for each rung a folder with its
traces, for ui.perfetto.dev, and torch's table of its longest operators.
"""

import argparse
import gzip
import json
import re
import shlex
import sys
import tempfile
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from itertools import accumulate
from pathlib import Path
from typing import NamedTuple

from benchmarks import Failed
from benchmarks.charts import new_figure, save
from benchmarks.ladder import choose, has_replay_buffer
from benchmarks.measuring import add_counts, add_out, chosen_device, output_of
from benchmarks.profiled import LAPS, MEASURED, OPERATORS, PARTS, PLAYER, TRAINER, WARM_UP
from benchmarks.report import HARDWARE, here, join_machine, write_table
from lib.training.machine import describe_machine

from matplotlib.patches import Patch

REST = "rest (ignite, Python)"
EPSILON = 0.02  # as in most of a run
# Activity in the pictures -> its colour, and its parts of an iteration.
ACTIVITIES = {
    "learns": ("tab:blue", ("sampling", "forward", "backward", "optimizer", "update")),
    "chooses actions": ("tab:orange", ("choosing actions",)),
    "plays": ("tab:green", ("environment", "wrappers")),
    "other": ("darkgray", ("sending", "storing", "logging and handlers", REST)),
    "waits": ("#ececec", ("waiting",)),
}
COLOURS = {part: colour for colour, parts in ACTIVITIES.values() for part in parts}
Bars = Sequence[tuple[float, float, str]]  # begin and length in milliseconds, and colour
START = "from benchmarks.profiled import main; main()"


class Span(NamedTuple):
    """A part of an iteration, from ``begin`` to ``end`` in milliseconds."""

    part: str
    begin: float
    end: float


class Worker(NamedTuple):
    """A process or thread of a rung, with its spans, which leave no gaps."""

    rung: str
    fps: float
    frames: int  # played while profiled
    name: str
    spans: list[Span]


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add this subcommand's flags."""
    text = "rungs by the beginning of their names, such as 01 or 04_new_wrappers_p"
    parser.add_argument("rungs", nargs="+", metavar="RUNG", help=text)
    counts = {
        "updates": (100, "updates to time, and as many to profile"),
        "milliseconds": (100, "length of the timeline"),
    }
    add_counts(parser, counts)
    add_out(parser, "runs/breakdown")


def run(args: argparse.Namespace) -> int:
    """Profile the rungs; write the table, the timeline and the traces."""
    asked = {flag.split("=")[-1].split(":")[0] for flag in args.rung_flags}  # --device=cuda:1
    machine = describe_machine(chosen_device(bool(asked & {"--cuda", "cuda"})))
    del machine["threads"]  # each rung chooses its own
    out = args.out.resolve()
    workers, left_out = list[Worker](), list[str]()
    for script in choose(args.rungs):
        print(script.stem, flush=True)
        try:
            workers += profile_rung(script, args, out / script.stem)
        except Failed as failure:  # a library is missing, for example
            print(f"left out: {failure}")
            left_out.append(f"Left out: {failure}")
    if not workers:
        return 1
    rows, averages, timelines = list[list[str]](), list[Bars](), list[Bars]()
    for one in workers:
        timelines.append([(begin, end - begin, COLOURS[part]) for part, begin, end in one.spans])
        spent = dict.fromkeys(COLOURS, 0.0)
        for part, begin, end in one.spans:
            spent[part] += (end - begin) / one.frames
        *begins, total = accumulate(spent.values(), initial=0.0)
        averages.append([*zip(begins, spent.values(), COLOURS.values(), strict=True)])
        rows += [
            [one.rung, f"{one.fps:,.1f}", one.name, part, f"{ms:.3f}", f"{ms / total:.1%}"]
            for part, ms in spent.items()
            if ms
        ]
    notes = [
        here(machine),
        f"Seed 0, epsilon {EPSILON:g}; FPS over {args.updates} updates after a warm-up of "
        f"{WARM_UP}, the parts over {args.updates} more, under torch's profiler",
        "A part is the time of its functions without the parts that they call; 'update' is the "
        "loss, or an update that is one compiled function. On a GPU this is the CPU's time",
        *left_out,
    ]
    title = " ".join(["Where an iteration goes", shlex.join(args.rung_flags)]).strip()
    header = ["rung", "FPS", "who", "part", "ms per frame", "share"]
    print(write_table(out / "breakdown", title, header, rows, notes))
    hardware = join_machine(machine, HARDWARE)
    draw(out / "breakdown.png", workers, averages, "milliseconds per frame", None, hardware)
    draw(out / "timeline.png", workers, timelines, "milliseconds", args.milliseconds, hardware)
    print(f"written to {out}")
    return int(bool(left_out))


def profile_rung(script: Path, args: argparse.Namespace, folder: Path) -> Iterator[Worker]:
    """Run a rung under the profiler; yield its processes and threads."""
    flags = ["--stop-reward", "1e9", "--checkpoint-every", "0"]
    flags += ["--epsilon-start", f"{EPSILON}", "--epsilon-final", f"{EPSILON}"]
    flags += ["--replay-initial", "1000"] * has_replay_buffer(script)
    folder.mkdir(exist_ok=True)
    for file in (LAPS, TRAINER, PLAYER):
        (folder / file).unlink(missing_ok=True)  # from an earlier command
    with tempfile.TemporaryDirectory() as runs:
        command = [sys.executable, "-c", START, str(folder), f"{args.updates}", script.name]
        output_of([*command, "--run-dir", runs, *flags, *args.rung_flags], script.stem)
    if not (folder / LAPS).exists():
        raise Failed(f"{script.stem} ended before {args.updates} updates were profiled")
    (f0, t0), (f1, t1), (f2, _), (f3, _) = json.loads((folder / LAPS).read_text())
    print(f"The longest operators by CPU time ({OPERATORS} in {folder}):")
    for line in (folder / OPERATORS).read_text().splitlines()[3:13]:
        name, share, *_ = re.split(r"\s{2,}", line.strip())
        print(f"{share:>9}  {name}")
    if f2 == f3:
        raise Failed(f"{script.stem} played no frame within {args.updates} updates: ask for more")
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
        kept = [span for span in whole if name != "its threads" or span.part != REST]  # idle
        yield Worker(script.stem, (f1 - f0) / (t1 - t0), f3 - f2, name, kept)


def read_trace(file: Path) -> dict[int, list[Span]]:
    """Return the named parts of a trace by thread, in milliseconds of a common clock."""
    with gzip.open(file) as stream:
        trace = json.load(stream)
    threads: dict[int, list[Span]] = defaultdict(list)
    for event in trace["traceEvents"]:
        if event.get("cat") == "user_annotation" and event["name"] in (*PARTS, MEASURED):
            begin = event["ts"] / 1e3
            threads[event["tid"]].append(Span(event["name"], begin, begin + event["dur"] / 1e3))
    return threads


def innermost(spans: Iterable[Span], begin: float, end: float) -> Iterator[Span]:
    """Yield innermost spans between two moments, in milliseconds since ``begin``."""
    edges = sorted(
        [(span.begin, 1, -span.end, span.part) for span in spans]
        + [(span.end, 0, -span.begin, span.part) for span in spans]
    )
    inside, since = [REST], begin
    for time, starts, _, part in [*edges, (end, 0, 0.0, "")]:
        time = min(max(time, begin), end)
        if time > since:
            chooses = "choosing actions" in inside  # which includes its forward pass
            yield Span("choosing actions" if chooses else inside[-1], since - begin, time - begin)
            since = time
        if starts:
            inside.append(part)
        elif part in inside:  # the latest with this name
            del inside[len(inside) - 1 - inside[::-1].index(part)]


def draw(
    path: Path,
    workers: list[Worker],
    bars: list[Bars],
    x_label: str,
    until: int | None,
    machine: str,
) -> None:
    """Draw the bars of each worker below its rung and its FPS."""
    figure, axes = new_figure(machine, 13.3, 1.6 + 0.42 * len(workers))
    y, places, above = 0.0, [], ""
    for one, theirs in zip(workers, bars, strict=True):
        if one.rung != above:
            axes.text(0, y + 0.7, f"{one.rung}: {one.fps:,.0f} FPS", fontsize=13)
            y, above = y + 0.85, one.rung
        y += 1.05
        places.append(y - 0.5)
        colours = [colour for _, _, colour in theirs]
        axes.broken_barh([bar[:2] for bar in theirs], (y - 1, 0.95), facecolors=colours)
    axes.set_yticks(places, [one.name for one in workers])
    axes.tick_params(labelsize=13)
    axes.set_xlim(0, until)
    axes.set_ylim(y + 0.2, 0)
    axes.set_xlabel(x_label, fontsize=13)
    handles = [Patch(color=colour, label=kind) for kind, (colour, _) in ACTIVITIES.items()]
    figure.legend(handles=handles, loc="outside lower center", ncols=5, fontsize=13, frameon=False)
    save(figure, path)
