"""A run folder: who may use it, and what is in it whatever happens. A tiny network learns."""

import errno
import fcntl
import gc
import math
import os
import resource
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NoReturn

import pytest
import torch
from conftest import ROOT
from ignite.engine import Engine, Events, State
from test_handlers import stream
from torch import nn

from lib.learning.agents import LinearSchedule
from lib.learning.replay_buffer import ReplayBuffer
from lib.running.checkpoints import CheckpointError, find_checkpoint, read_checkpoint
from lib.running.events import replay_batches
from lib.running.flags import parse
from lib.running.folder_lock import InUseError, hold
from lib.running.handlers import attach_handlers
from lib.running.options import ReplayOptions
from lib.running.run import Run, launch

FLAGS = ("--replay-initial", "20", "--replay-size", "200", "--batch-size", "4")
FLAGS += ("--checkpoint-every", "10")
Handler = Callable[[Engine, Run], None]


class Net(nn.Linear):
    """A megabyte of weights; a checkpoint is larger than the events."""

    arguments = ()


class Ended:
    """What a run leaves behind."""

    def __init__(self, code: int, folder: Path, out: str, error: str) -> None:
        self.code, self.folder, self.out, self.error = code, folder, out, error

    def files(self) -> list[str]:
        return sorted(file.name for file in (self.folder / "checkpoints").iterdir())


@pytest.fixture
def start(tmp_path, signals, monkeypatch, capsys) -> Callable[..., Ended]:
    """Starts or resumes a run in this process; each game has one point more than the last."""

    def start(
        *flags: str,
        every: Handler = lambda engine, run: None,
        reward: int = 0,
        spoil: Callable[[nn.Module], object] = lambda net: None,
    ) -> Ended:
        def train(options: ReplayOptions, run: Run) -> State:
            net = Net(500, 500)
            spoil(net)
            optimizer = torch.optim.Adam(net.parameters())
            buffer = ReplayBuffer(options.replay_size, (2, 2, 2))

            def update(engine: Engine, batch: object) -> torch.Tensor:
                optimizer.zero_grad()
                loss = net(torch.ones(500)).square().mean()
                loss.backward()
                optimizer.step()
                return loss.detach()

            engine = Engine(update)
            learned = {"net": net, "optimizer": optimizer, "buffer": buffer}
            attach_handlers(engine, run, LinearSchedule(1.0, 0.0, 1_000), learned)
            engine.add_event_handler(Events.ITERATION_COMPLETED(every=5), every, run)
            games = stream([float(reward + number) for number in range(100)])
            return engine.run(replay_batches(engine, games, buffer, options.replay_initial, 4))

        place = tmp_path / "runs"
        command = flags if "--resume" in flags else (*FLAGS, "--run-dir", str(place), *flags)
        monkeypatch.setattr(sys, "argv", ["tiny.py", *command])
        monkeypatch.setattr(threading, "excepthook", threading.excepthook)
        with pytest.raises(SystemExit) as ended:
            launch(train, ReplayOptions, "")
        (folder,) = place.iterdir()
        code = ended.value.code
        del ended  # its traceback holds the lock, which a process drops when it ends
        gc.collect()
        return Ended(code, folder, *capsys.readouterr())

    return start


def everything(folder: Path) -> dict[str, bytes]:
    return {str(file): file.read_bytes() for file in folder.rglob("*") if file.is_file()}


def one_line(text: str) -> str:
    assert len(text.strip().splitlines()) == 1, text
    return text


def test_a_run_folder_that_cannot_be_made(tmp_path, signals, monkeypatch, capsys):
    (tmp_path / "file").touch()
    for place in (tmp_path / "file", "/proc/nothing"):
        monkeypatch.setattr(sys, "argv", ["tiny.py", "--run-dir", str(place)])
        with pytest.raises(SystemExit) as ended:
            launch(lambda options, run: pytest.fail("it trains"), ReplayOptions, "")
        assert ended.value.code == 2
        assert "--run-dir" in one_line(capsys.readouterr().err)


def test_a_loss_that_is_no_number_is_exit_code_1(start):
    run = start("--max-frames", "200", spoil=lambda net: nn.init.constant_(net.bias, math.nan))
    assert run.code == 1
    assert run.error.strip() == "tiny: failed: the loss became nan within 100 updates"


FULL = "CUDA out of memory. Tried to allocate 2.00 GiB. GPU 0 has a total capacity of 8.00 GiB"
LOST = "CUDA error: an illegal memory access was encountered"


@pytest.mark.parametrize(
    ("place", "error", "told"),
    [
        ("forward", torch.OutOfMemoryError(f"{FULL}. 1 is free. Of the memory"), FULL),
        ("forward", RuntimeError("cuDNN error: CUDNN_STATUS"), "cuDNN error: CUDNN_STATUS"),
        ("state_dict", torch.AcceleratorError(f"{LOST}\nKernel errors might"), LOST),
    ],
)
def test_what_the_gpu_ran_into_is_one_line(place, error, told, start):
    """In an update, or while it is saved."""

    def fail(*_: object) -> NoReturn:
        raise error

    run = start("--max-frames", "45", spoil=lambda net: setattr(net, place, fail))
    assert run.code == 1
    assert one_line(run.error).startswith(f"tiny: failed: {told}")


def test_a_run_that_is_alive_cannot_be_resumed(start, capsys):
    refused = []

    def resume(engine: Engine, run: Run) -> None:
        run.tensorboard.writer.flush()  # else its thread may write at any time
        before = everything(run.folder)
        capsys.readouterr()
        with pytest.raises(SystemExit) as ended:
            parse(ReplayOptions, "", ["--resume", str(run.folder)])
        assert ended.value.code == 2
        refused.append(one_line(capsys.readouterr().err))
        assert everything(run.folder) == before

    run = start("--max-frames", "50", every=resume)
    again = start("--resume", str(run.folder), "--max-frames", "80", every=resume)
    assert (run.code, again.code) == (0, 0), again.error
    assert len(refused) == 6 + 2  # the first of them before there is a checkpoint
    assert all(f"is in use: process {os.getpid()} on " in line for line in refused)


HOLDER = """
import subprocess, sys
from pathlib import Path
from lib.running.folder_lock import hold
lock = hold(Path(sys.argv[1]))
child = subprocess.Popen(["sleep", "1000"], close_fds=False, stdout=subprocess.DEVNULL)
print(child.pid, flush=True)
child.wait()
"""


def test_a_killed_process_locks_nothing_even_if_its_child_lives(tmp_path):
    command = [sys.executable, "-c", HOLDER, str(tmp_path)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, cwd=ROOT) as holder:
        child = int(holder.stdout.readline())
        try:
            with pytest.raises(InUseError, match=f"process {holder.pid} on "):
                hold(tmp_path)
            holder.kill()
            holder.wait()
            assert hold(tmp_path)
        finally:
            holder.kill()
            os.kill(child, signal.SIGKILL)


def test_a_file_system_without_locks_is_told_and_used(start, monkeypatch):
    def flock(descriptor: int, operation: int) -> None:
        raise OSError(errno.ENOLCK, "No locks available")

    monkeypatch.setattr(fcntl, "flock", flock)
    run = start("--max-frames", "50")
    assert run.code == 0, run.error
    assert run.out.count("its file system has no locks") == 1
    again = start("--resume", str(run.folder), "--max-frames", "80")
    assert again.code == 0, again.error


def test_checkpoints_deleted_by_hand_do_not_end_a_run(start):
    def delete(engine: Engine, run: Run) -> None:
        for file in (run.folder / "checkpoints").glob("*.pt"):
            file.unlink()

    run = start("--max-frames", "75", every=delete)
    assert run.code == 0, run.error
    assert run.files() == ["best-55.pt", "latest-55.pt"]


@contextmanager
def files_limited_to(size: int) -> Iterator[None]:
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, limits[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)


# Better games: the best checkpoint is written first. Worse ones: only the latest is.
@pytest.mark.parametrize(("kind", "reward"), [("best", 100), ("latest", -100)])
def test_a_failed_save_leaves_what_it_would_have_replaced(kind, reward, start):
    run = start("--max-frames", "45")
    assert run.files() == ["best-25.pt", "latest-20.pt", "latest-25.pt"]
    before = everything(run.folder / "checkpoints")
    longer = ("--resume", str(run.folder), "--max-frames", "80", "--stop-reward", "1000")
    with files_limited_to(500_000):  # a part of a checkpoint, all of the events
        again = start(*longer, reward=reward)
    assert again.code == 1
    assert "no checkpoint could be written" in one_line(again.error)
    assert everything(run.folder / "checkpoints") == before
    assert start(*longer, reward=reward).code == 0
    assert f"{kind}-40.pt" in run.files()


def test_a_checkpoint_is_on_the_disk_before_another_is_deleted(start, monkeypatch):
    synced: list[tuple[str, list[str]]] = []
    fsync = os.fsync

    def watch(descriptor: int) -> None:
        path = Path(f"/proc/self/fd/{descriptor}").readlink()
        if "checkpoints" in path.parts:
            folder = path if path.is_dir() else path.parent
            synced.append((path.name, sorted(file.name for file in folder.iterdir())))
        fsync(descriptor)

    monkeypatch.setattr(os, "fsync", watch)
    run = start("--max-frames", "50")
    assert run.code == 0, run.error
    (newest,) = (file for file in run.files() if file.startswith("best"))
    at = [name for name, _ in synced].index(f"tmp-{newest}")
    (_, first), (folder, then) = synced[at : at + 2]
    olds = [name for name in first if name.startswith("best")]
    assert len(olds) == 1
    assert newest not in first
    assert folder == "checkpoints"
    assert {*olds, newest} <= set(then)
    assert olds[0] not in run.files()


DAMAGES = {
    "empty": lambda content: b"",
    "cut": lambda content: content[:-10_000],
    "zeros": lambda content: bytes(len(content)),
    "text": lambda content: b"not found\n",
}


@pytest.mark.parametrize("damage", DAMAGES)
def test_an_older_checkpoint_takes_the_place_of_a_damaged_one(damage, start):
    run = start("--max-frames", "45")
    assert run.files() == ["best-25.pt", "latest-20.pt", "latest-25.pt"]
    place = run.folder / "checkpoints"
    (place / "latest-copy.pt").write_text("a note")
    (place / "best-3.pt").write_bytes(b"")  # one too many
    for name in ("best-25.pt", "latest-25.pt"):
        (place / name).write_bytes(DAMAGES[damage]((place / name).read_bytes()))
    again = start("--resume", str(run.folder), "--max-frames", "60")
    assert again.code == 0, again.error
    assert "resumed after 39 frames, 20 updates" in again.out
    (told,) = (line for line in again.out.splitlines() if "latest-25.pt" in line)
    assert "damaged" in told
    assert told.endswith("latest-20.pt takes its place")
    assert again.files() == ["best-21.pt", "latest-20.pt", "latest-21.pt", "latest-copy.pt"]
    for name in again.files()[:-1]:
        read_checkpoint(place / name)


def test_if_all_are_damaged_the_newest_is_named(start):
    run = start("--max-frames", "45")
    before = everything(run.folder)
    for file in (run.folder / "checkpoints").glob("latest-*.pt"):
        assert "buffer" not in read_checkpoint(file)  # it is large, and not kept unless asked for
        file.write_bytes(b"")
    again = start("--resume", str(run.folder))
    assert again.code == 2
    assert "latest-25.pt is damaged" in one_line(again.error)
    assert everything(run.folder).keys() == before.keys()
    with pytest.raises(CheckpointError, match="is damaged"):
        read_checkpoint(find_checkpoint(run.folder, "latest"))


def test_a_resumed_run_keeps_nothing_of_its_checkpoint(start):
    def look(engine: Engine, run: Run) -> None:
        for file in (run.folder / "checkpoints").glob("*.pt"):
            file.unlink()
        seen.append(run.folder.name in Path("/proc/self/maps").read_text())

    seen: list[bool] = []
    run = start("--max-frames", "45", "--checkpoint-replay")
    again = start("--resume", str(run.folder), "--max-frames", "80", every=look)
    assert again.code == 0, again.error
    assert seen
    assert not any(seen)


def test_a_setting_that_this_version_does_not_have_is_named(start):
    run = start("--max-frames", "45")
    for file in (run.folder / "checkpoints").glob("latest-*.pt"):
        kept = torch.load(file, weights_only=True)
        kept["settings"]["hyperparameters"]["dropout"] = 0.5
        torch.save(kept, file)
    before = everything(run.folder)
    again = start("--resume", str(run.folder))
    assert again.code == 2
    assert "no setting dropout: an earlier version" in one_line(again.error)
    assert everything(run.folder) == before


def test_only_the_latest_checkpoints_hold_the_buffer_until_it_is_switched_off(start):
    def with_buffer(run: Ended) -> set[str]:
        place = run.folder / "checkpoints"
        return {name for name in run.files() if "buffer" in read_checkpoint(place / name)}

    solve = ("--stop-reward", "0.05", "--max-frames", "60")
    run = start(*solve, "--checkpoint-replay")
    assert {name.split("-")[0] for name in run.files()} == {"best", "latest", "solved"}
    assert with_buffer(run) == {name for name in run.files() if name.startswith("latest")}
    again = start("--resume", str(run.folder), *solve, "--no-checkpoint-replay")
    assert again.code == 0, again.error
    longer = ("--max-frames", "90", "--stop-reward", "100")
    again = start("--resume", str(run.folder), *longer)
    assert again.code == 0, again.error
    assert with_buffer(again) == set()


def test_a_run_is_resumed_where_no_new_one_could_begin(start, tmp_path, monkeypatch):
    run = start("--max-frames", "45")
    (tmp_path / "here").mkdir()
    (tmp_path / "here" / "runs").write_text("not a folder")
    monkeypatch.chdir(tmp_path / "here")
    again = start("--resume", str(run.folder), "--max-frames", "60")
    assert again.code == 0, again.error


@contextmanager
def read_only(folder: Path) -> Iterator[None]:
    """Nobody can write there, not even root."""
    mount = ["mount", "--bind", str(folder), str(folder)]
    if subprocess.run(mount, capture_output=True).returncode:
        pytest.skip("no file system can be mounted here")
    try:
        subprocess.run(["mount", "-o", "remount,bind,ro", str(folder)], check=True)
        yield
    finally:
        subprocess.run(["umount", str(folder)], check=True)


def test_a_read_only_run_is_refused_in_one_line(start):
    run = start("--max-frames", "45")
    with read_only(run.folder):
        again = start("--resume", str(run.folder))
    assert again.code == 2
    assert "is not writable" in one_line(again.error)
