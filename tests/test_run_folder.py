"""A run folder: who may use it, and what is in it whatever happens. A tiny network learns."""

import gc
import io
import math
import os
import resource
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import NoReturn

import pytest
import torch
from conftest import curves
from ignite.engine import Engine, Events, State
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
from tensorboard.plugins.hparams.plugin_data_pb2 import HParamsPluginData
from test_handlers import stream
from torch import nn

from lib.learning.agents import LinearSchedule
from lib.learning.replay_buffer import ReplayBuffer
from lib.running.checkpoints import CheckpointError, read_checkpoint, write_checkpoint
from lib.running.events import replay_batches
from lib.running.handlers import attach_handlers
from lib.running.options import ReplayOptions
from lib.running.run import Failure, Run, launch, open_folder
from lib.running.speedrun_options import SharedCoresOptions, SpeedrunOptions

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
        **more: nn.Module,
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
            learned = {"net": net, "optimizer": optimizer, "buffer": buffer} | more
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


@contextmanager
def files_limited_to(size: int) -> Iterator[None]:
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, limits[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)


def test_a_failed_save_leaves_what_it_would_have_replaced(start):
    run = start("--max-frames", "45")
    assert run.files() == ["best.pt", "latest.pt", "previous.pt"]
    before = everything(run.folder / "checkpoints")
    longer = ("--resume", str(run.folder), "--max-frames", "80", "--stop-reward", "1000")
    for reward in (100, -100):  # the best checkpoint is written first, or only the latest
        with files_limited_to(500_000):  # a part of a checkpoint, all of the events
            again = start(*longer, reward=reward)
        assert again.code == 1
        assert "MB free: [Errno 27] File too large" in one_line(again.error)
        assert everything(run.folder / "checkpoints") == before
    assert start(*longer).code == 0


class Interrupted(io.BufferedWriter):
    """A file; Ctrl-C arrives when a part of it is written. torch raises RuntimeError over it."""

    writes = 0

    def write(self, content: bytes) -> int:
        self.writes += 1
        if self.writes == 5:
            raise KeyboardInterrupt
        return super().write(content)


def test_ctrl_c_while_a_checkpoint_is_written_is_no_full_disk(start, monkeypatch):
    run = start("--max-frames", "45")
    before, usual = everything(run.folder / "checkpoints"), Path.open

    def open_file(path: Path, *mode: str, **how: str) -> object:
        stops = path.name == "latest.tmp"
        return Interrupted(io.FileIO(path, "w")) if stops else usual(path, *mode, **how)

    monkeypatch.setattr(Path, "open", open_file)
    again = start("--resume", str(run.folder), "--max-frames", "80", reward=-100)
    assert (again.code, again.error.strip()) == (130, "tiny: interrupted")
    assert everything(run.folder / "checkpoints") == before


def test_a_checkpoint_is_on_the_disk_before_it_replaces_another(tmp_path, monkeypatch):
    file, seen, fsync = tmp_path / "latest.pt", [], os.fsync

    def watch(descriptor: int) -> None:
        assert Path(f"/proc/self/fd/{descriptor}").readlink().name == "latest.tmp"
        seen.append(everything(tmp_path).keys() - {str(file.with_suffix(".tmp"))})
        fsync(descriptor)

    monkeypatch.setattr(os, "fsync", watch)
    for number in range(3):
        write_checkpoint(file, {"settings": number})
    previous = tmp_path / "previous.pt"
    assert seen == [set(), {str(file)}, {str(file), str(previous)}]
    assert [read_checkpoint(path)["settings"] for path in (file, previous)] == [2, 1]
    assert len(everything(tmp_path)) == 2


def in_the_middle(content: bytes) -> bytes:
    """With some weights set to zero; the file is as long as before."""
    return content[:400_000] + bytes(65_536) + content[465_536:]


DAMAGES = {
    "empty": lambda content: b"",
    "cut": lambda content: content[:-10_000],
    "zeros": lambda content: bytes(len(content)),
    "zeros in the middle": in_the_middle,
    "text": lambda content: b"not found\n",
}


@pytest.mark.parametrize("damage", DAMAGES)
def test_an_older_checkpoint_takes_the_place_of_a_damaged_one(damage, start):
    run = start("--max-frames", "45")
    place = run.folder / "checkpoints"
    for name in ("best.pt", "latest.pt"):
        (place / name).write_bytes(DAMAGES[damage]((place / name).read_bytes()))
    again = start("--resume", str(run.folder), "--max-frames", "60")
    assert again.code == 0, again.error
    assert "resumed after 39 frames, 20 updates" in again.out
    (told,) = (line for line in again.out.splitlines() if "latest.pt" in line)
    assert "damaged" in told
    assert told.endswith("previous.pt takes its place")
    assert again.files() == ["best.pt", "latest.pt", "previous.pt"]
    updates = [read_checkpoint(place / name)["progress"]["iteration"] for name in again.files()]
    assert updates == [21, 21, 20]


def test_if_all_are_damaged_the_newest_is_named(start):
    run = start("--max-frames", "45")
    for name in ("latest.pt", "previous.pt"):
        file = run.folder / "checkpoints" / name
        assert "buffer" not in read_checkpoint(file)  # it is large, and not kept unless asked for
        file.write_bytes(b"")
    before = everything(run.folder)
    again = start("--resume", str(run.folder))
    assert again.code == 2
    assert "latest.pt is damaged" in one_line(again.error)
    assert everything(run.folder) == before


def test_a_run_that_was_on_a_gpu_is_resumed_on_the_cpu(start):
    run = start("--max-frames", "45")
    file = run.folder / "checkpoints" / "latest.pt"
    kept = read_checkpoint(file)
    kept["progress"]["device_random"] = torch.get_rng_state()
    write_checkpoint(file, kept)
    again = start("--resume", str(run.folder), "--max-frames", "60")
    assert again.code == 0, again.error


def test_a_run_that_cannot_be_resumed_keeps_its_curves(start):
    run = start("--max-frames", "250", "--checkpoint-every", "200")
    whole = curves(run.folder.parent)
    assert ("outcome/frames", 0, 250.0) in whole
    again = start("--resume", str(run.folder), "--max-frames", "300", other=nn.Linear(1, 1))
    assert again.code == 1
    assert "has no other: an earlier version saved it" in one_line(again.error)
    assert curves(run.folder.parent) == whole
    assert start("--resume", str(run.folder), "--max-frames", "300").code == 0
    points = [point for point in curves(run.folder.parent) if point[0] == "outcome/frames"]
    assert points == [("outcome/frames", 0, 300.0)]


def test_a_resumed_run_keeps_nothing_of_its_checkpoint(start):
    def look(engine: Engine, run: Run) -> None:
        for file in (run.folder / "checkpoints").glob("*.pt"):  # by hand: that ends no run
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
    file = run.folder / "checkpoints" / "latest.pt"
    kept = read_checkpoint(file)
    kept["settings"]["hyperparameters"]["dropout"] = 0.5
    write_checkpoint(file, kept)
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
    assert run.files() == ["best.pt", "latest.pt", "previous.pt", "solved.pt"]
    assert with_buffer(run) == {"latest.pt", "previous.pt"}
    again = start("--resume", str(run.folder), *solve, "--no-checkpoint-replay")
    assert again.code == 0, again.error
    longer = ("--max-frames", "90", "--stop-reward", "100")
    again = start("--resume", str(run.folder), *longer)
    assert again.code == 0, again.error
    assert with_buffer(again) == set()


def listed(run: Path) -> dict[str, object]:
    """The settings of a run in TensorBoard's HPARAMS tab."""
    told = EventAccumulator(str(run)).Reload().summary_metadata
    content = told["_hparams_/session_start_info"].plugin_data.content
    settings = HParamsPluginData.FromString(content).session_start_info.hparams
    columns = told["_hparams_/experiment"].plugin_data.content
    experiment = HParamsPluginData.FromString(columns).experiment
    assert {info.name for info in experiment.hparam_infos} >= {"envs", *settings}
    assert {info.name.tag for info in experiment.metric_infos} >= {
        "outcome/minutes",
        "outcome/solved",
    }
    return {name: getattr(value, value.WhichOneof("kind")) for name, value in settings.items()}


def test_hparams_follow_what_changes_when_a_run_is_resumed(start):
    run = start("--max-frames", "45", "--threads", "1")
    told = listed(run.folder)
    assert (told["script"], told["threads"], told["max_frames"]) == ("tiny", 1, 45)
    assert start("--resume", str(run.folder), "--max-frames", "60", "--seed", "3").code == 2
    assert listed(run.folder) == told
    assert start("--resume", str(run.folder), "--max-frames", "60").code == 0
    assert listed(run.folder)["max_frames"] == 60


def test_a_run_that_is_alive_cannot_be_resumed(start):
    def resume(engine: Engine, run: Run) -> None:
        run.tensorboard.writer.flush()  # else its thread may write at any time
        before = everything(run.folder)
        with pytest.raises(CheckpointError, match="is in use"):
            open_folder(replace(run.options, resume=str(run.folder)), "tiny")
        assert everything(run.folder) == before
        tried.append(run.folder)

    tried: list[Path] = []
    run = start("--max-frames", "50", every=resume)
    again = start("--resume", str(run.folder), "--max-frames", "80", every=resume)
    assert (run.code, again.code) == (0, 0), again.error
    assert len(tried) == 6 + 2


def test_a_run_is_resumed_where_no_new_one_could_begin(start, tmp_path, monkeypatch):
    run = start("--max-frames", "45")
    (tmp_path / "here").mkdir()
    (tmp_path / "here" / "runs").write_text("not a folder")
    monkeypatch.chdir(tmp_path / "here")
    again = start("--resume", str(run.folder), "--max-frames", "60")
    assert again.code == 0, again.error


@pytest.mark.parametrize(
    ("options", "flags", "threads"),
    [
        (ReplayOptions, ["--threads", "3"], 3),
        (SpeedrunOptions, [], 4),
        (SharedCoresOptions, [], 2),
        (SharedCoresOptions, ["--threads", "3"], 3),
    ],
)
@pytest.mark.usefixtures("signals")
def test_a_run_takes_its_seed_and_tells_its_threads(
    options, flags, threads, tmp_path, monkeypatch, capsys
):
    def train(settings: object, run: Run) -> NoReturn:
        raise Failure(f"{torch.get_num_threads()} threads drew {torch.rand(()).item()}")

    before = torch.get_num_threads()
    monkeypatch.setattr(threading, "excepthook", threading.excepthook)  # launch sets its own
    errors = []
    for seed in ("1", "1", "2"):
        torch.set_num_threads(4)
        place = ["--run-dir", str(tmp_path), "--seed", seed]
        monkeypatch.setattr(sys, "argv", ["rung.py", *place, *flags])
        with pytest.raises(SystemExit):
            launch(train, options, "")
        out, err = capsys.readouterr()
        assert f"{threads} threads drew" in err
        assert f", threads {threads}, " in out
        errors.append(err)
    torch.set_num_threads(before)
    assert errors[0] == errors[1] != errors[2]
