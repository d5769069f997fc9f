"""A page about a GPU that nobody has tried: what it is, what works there, and what was left out.

A run checks itself (see ``lib.gpu_checks``) and prints what it found. So this asks for the facts,
and then lets four rungs play 2,000 frames each.
"""

import platform
import re
import time
from collections.abc import Iterator
from importlib.metadata import distributions
from pathlib import Path

import torch
from torch.utils.collect_env import get_nvidia_driver_version, run

from benchmarks.processes import lines_of, run_for
from benchmarks.report import join_machine, write_table
from lib.devices import compiler_fault, missing_device
from lib.running.machine import describe_machine

SECONDS = 170  # for all rungs; compiling takes most of it
GRACE_SECONDS = 5  # for a rung that is asked to stop
FRAMES = 2_000
SMALL_BUFFER = ("--replay-initial", "500")
RUNGS = {
    "01_baseline": SMALL_BUFFER,
    "03_parallel": SMALL_BUFFER,
    "06_compiled_update": SMALL_BUFFER,
    "08_recompiled_pong": ("--rollout", "32"),  # so that updates begin after 512 frames
}
PACKAGES = ("triton", "numba", "numba-cuda", "nvidia-cuda-runtime", "nvidia-cudnn-cu13")
CHECKED = ("checked", "left out: ", "the update cannot be compiled")  # beginnings of lines
SPEED = re.compile(r"; avg_reward .*, ([\d.,]+) FPS$")


def write_page(out: Path, device: str) -> int:
    """Write and print the page; 0 if every rung ran to its end, on cuda or, to rehearse, cpu."""
    notes = list(facts(device))
    fault = missing_device(device)
    rows: list[list[str]] = []
    deadline = time.monotonic() + SECONDS
    for number, (rung, flags) in enumerate(RUNGS.items()):
        if fault:
            notes.append(f"No rung ran: {fault}")
            break
        share = (deadline - time.monotonic()) / (len(RUNGS) - number)  # what is saved is passed on
        rows.append(run_rung(rung, [*flags, "--device", device], out, share))
        print("  ".join(rows[-1][:3]), flush=True)
    header = ["rung", "how it ended", "FPS", "what it checked and left out, and its last line"]
    write_table(out / "check", "A GPU, checked", header, rows, notes)
    print((out / "check.md").read_text())
    print(f"send this page with an issue: {out / 'check.md'}")
    return 0 if rows and all(row[1] == "done" for row in rows) else 1


def facts(device: str) -> Iterator[str]:
    """The GPU, its driver and the versions, a line each."""
    usable = missing_device(device) is None
    if usable:
        yield f"Machine: {join_machine(describe_machine(torch.device(device)))}"
    yield f"System: {platform.platform()}"  # names WSL2
    yield f"Driver: {get_nvidia_driver_version(run) or 'nvidia-smi tells of none'}"
    yield f"torch {torch.__version__} for CUDA {torch.version.cuda}: {torch.cuda.get_arch_list()}"
    if usable and device.startswith("cuda"):
        free, memory = (size / 2**30 for size in torch.cuda.mem_get_info(device))
        yield f"Compute capability: {torch.cuda.get_device_capability(device)}"
        yield f"Memory: {free:.1f} of {memory:.1f} GiB are free"
        yield f"Compiler: {compiler_fault(torch.device(device)) or 'may be tried'}"
    packages = {package.name: package.version for package in distributions()}
    yield "Packages: " + ", ".join(f"{name} {packages.get(name, 'none')}" for name in PACKAGES)


def run_rung(rung: str, flags: list[str], out: Path, seconds: float) -> list[str]:
    """The row of a rung in the page; everything that it prints is kept beside the page."""
    command = [f"{rung}.py", "--max-frames", str(FRAMES), "--run-dir", str(out / "runs"), *flags]
    log = out / f"check-{rung}.txt"
    with open(log, "w") as file:
        code = run_for(seconds, command, GRACE_SECONDS, file)
    how = {0: "done", None: f"stopped after {seconds:.0f} seconds"}.get(code, f"exit code {code}")
    lines = lines_of(log)
    told = [line for line in lines if line.startswith(CHECKED)] + lines[-1:]
    speed = SPEED.search(lines[-1]) if lines else None
    return [rung, how, speed[1] if speed else "", "; ".join(told).replace("|", "/")]
