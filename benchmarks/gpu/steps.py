"""What an hour on a GPU is spent on, in order of worth. To add a step, add it to ``steps``."""

from dataclasses import dataclass
from pathlib import Path

Command = tuple[str, ...]  # arguments of Python
BENCHMARKS = ("-m", "benchmarks")
SWEEPS = ("play-device", "sync", "envs", "steps", "wrappers")


@dataclass(frozen=True)
class Step:
    """Programs that are run one after another."""

    name: str  # of its file
    why: str  # what it is good for, in one line
    commands: tuple[Command, ...]  # to run, also when one before them failed
    least: float  # minutes without which it is not begun
    most: float  # minutes after which it is stopped


def steps(out: Path, *, cuda: bool, tiny: bool) -> list[Step]:
    """All steps, the one worth most first; ``tiny`` ones only show whether the commands work."""
    gpu = ("--cuda",) if cuda else ()
    at = str(out)
    short = ("--frames", "300", "--replay-initial", "100") if tiny else ("--frames", "10000")
    # A run that is to solve Pong does not go far in a rehearsal.
    way = ("--", "--max-frames", "300") if tiny else ()
    few = ("--updates", "2", "--repeats", "1", "--replay-initial", "40") if tiny else ()
    quick = ("--repeats", "1", "--milliseconds", "1", "--batch-size", "2") if tiny else ()
    some = ("--only", "memory-format", "precision", "cudnn-benchmark") if tiny else ()
    cheap = ("--rungs", "01") if tiny else ()

    def ladder(folder: str, seeds: int, *flags: str) -> tuple[Command, ...]:
        runs = f"{at}/{folder}"
        seeds_flag = ("--seeds", "1" if tiny else str(seeds))
        suite = (*BENCHMARKS, "ladder", "--run-dir", runs, *seeds_flag, *gpu, *flags)
        return (suite, (*BENCHMARKS, "table", runs))

    def solve(rung: str, most: float) -> Step:
        run = ladder(f"solve-{rung}", 1, "--rungs", rung, "--solve", *way)
        return Step(f"solve-{rung}", f"minutes of {rung} to 17", run, 3, most)

    def sweep(name: str) -> Step:
        runs = ("--run-dir", f"{at}/sweeps", "--seeds", "1")
        command = (*BENCHMARKS, "sweep", name, *runs, *gpu, *short)
        return Step(f"sweep-{name}", "one setting changed", (command,), 3, 12)

    waits = [
        (*BENCHMARKS, "waits", rung, *gpu, "--updates", "5" if tiny else "200")
        for rung in ("01_baseline", "03_parallel")
    ]
    tests = ("-m", "pytest", "-n", "4", "-rf", "tests/test_gpu.py", "tests/test_emulator_cuda.py")
    games = ("--games", "2", "--milliseconds", "1", "--rounds", "1") if tiny else ()
    emulator = (*BENCHMARKS, "emulator", *gpu, *games, "--out", f"{at}/emulator")
    techniques = (*BENCHMARKS, "techniques", *gpu, *quick, *some, "--out", f"{at}/techniques")
    one = ("01_baseline",) if tiny else ()
    apart = (*BENCHMARKS, "breakdown", *one, *gpu, *few, "--out", f"{at}/breakdown")
    about = ("-m", "torch.utils.collect_env")
    return [
        Step("versions", "what was measured with", (about,), 0, 2),
        Step("tests", "what only a real GPU can show", (tests,), 2, 15),
        Step("waits", "where the CPU waits for the GPU, by line", tuple(waits), 1, 4),
        Step("emulator", "the emulator's games on the GPU", (emulator,), 2, 6),
        Step("fps", "frames per second of every rung", ladder("fps", 1, *cheap, *short), 3, 12),
        *(solve(rung, 12) for rung in ("07", "08")),
        solve("06", 25),
        Step("techniques", "each optimisation by itself", (techniques,), 3, 12),
        Step("breakdown", "where an iteration goes", (apart,), 3, 12),
        *(sweep(name) for name in (SWEEPS[:1] if tiny else SWEEPS)),
        Step("fps-3", "the same with three seeds", ladder("fps", 3, *cheap, *short), 8, 40),
    ]


STEPS = [step.name for step in steps(Path(), cuda=False, tiny=False)]
