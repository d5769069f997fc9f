"""The emulator's messages about missing parts, its cache, and its wheel."""

import os
import shutil
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import SimpleNamespace

from pong_emulator import EmulatorError, compiling, missing, preparing
from pong_emulator.compiling import kept_in
from pong_emulator.rom import read_rom

import psutil
import pytest
import torch
from conftest import ROOT, run_python

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="needs sessions and HOME of POSIX")


def test_the_rung_says_in_one_line_that_numba_is_missing(tmp_path: Path) -> None:
    program = (
        "import runpy, sys; sys.modules['numba'] = None; sys.argv[:] = sys.argv[1:]; "
        "runpy.run_path(sys.argv[0], run_name='__main__')"
    )
    done = run_python("-c", program, ROOT / "08_recompiled_pong.py", "--run-dir", tmp_path)
    assert (done.returncode, done.stdout) == (2, "")
    assert "Numba, which compiles" in done.stderr
    assert done.stderr.count("\n") == 1
    assert not list(tmp_path.iterdir())


def test_a_missing_gpu_or_rom_and_another_one_are_told(tmp_path, monkeypatch) -> None:
    for device in ["cuda:99"] + ["cuda"] * (not torch.cuda.is_available()):
        assert missing(device) == f"torch finds no GPU {device} on this machine"
    other = tmp_path / "breakout.bin"
    other.write_bytes(b"\x00" * 2048)
    with pytest.raises(EmulatorError, match=r"\A.*breakout.bin is not the Pong .*\Z"):
        read_rom(other)
    package = SimpleNamespace(origin="/none/ale_py.py")  # an ale-py whose folder has none
    monkeypatch.setattr("pong_emulator.rom.find_spec", lambda name: package)
    assert missing().startswith("no ROM at /none/roms/pong.bin (No such file")
    monkeypatch.setattr("pong_emulator.rom.find_spec", lambda name: None)
    assert missing() == "Pong's ROM comes with ale-py, which is not installed: pip install ale-py"


@pytest.mark.usefixtures("console")
def test_what_was_prepared_is_not_prepared_again() -> None:
    before = psutil.Process().children()
    with preparing():
        assert psutil.Process().children() == before
    assert list(compiling.folder().rglob("games.*.nbi"))  # the fixture did it in another process


def test_preparing_for_a_gpu_ends_with_an_interrupted_program_alone(tmp_path: Path) -> None:
    ignore = shutil.ignore_patterns("__pycache__")
    shutil.copytree(ROOT / "pong_emulator", tmp_path / "pong_emulator", ignore=ignore)
    program = """
import os, sys
import pong_emulator.compiling, psutil, torch
pong_emulator.missing = lambda *_: None  # here are two GPUs, of two kinds
torch.cuda.get_device_capability = lambda device: (9, int(device[-1]))
(pong_emulator.compiling.folder() / "prepared-sm_91").touch()
for device in ("cuda:1", "cuda:0"):
    try:
        with pong_emulator.preparing(device):
            for child in psutil.Process().children():
                print(child.pid, os.getsid(child.pid), child.cmdline()[-1].rpartition(".")[2])
            raise KeyboardInterrupt
    except KeyboardInterrupt:
        sys.stderr.write("interrupted ")
"""
    done = run_python("-c", program, cwd=tmp_path)
    assert done.stderr.split() == ["interrupted"] * 2
    pids, sessions, tasks = zip(*map(str.split, done.stdout.splitlines()), strict=True)
    assert tasks == ("prepare('cpu')", "prepare('cpu')", "prepare('cuda:0')")
    assert pids == sessions  # of their own: signals to the terminal or the group do not reach them
    assert not any(psutil.pid_exists(int(pid)) for pid in pids)


def test_processes_share_a_folder_and_delete_what_has_long_been_of_no_use(tmp_path: Path) -> None:
    kept = tmp_path / "__pycache__"
    for name in ("pong-new", "numba", *(f"pong-{i}" for i in range(8))):
        (kept / name).mkdir(parents=True)
        hours = 23 if name == "pong-new" else 25  # they are kept for a day
        os.utime(kept / name, (0, time.time() - hours * 3600))

    def made(number: int) -> Path:
        folder = kept_in(tmp_path)
        (folder / str(number)).touch()  # still there
        return folder

    with ThreadPoolExecutor(8) as pool:
        (now,) = set(pool.map(made, range(8)))
    assert len(list(now.iterdir())) == 8
    assert {folder.name for folder in kept.iterdir()} == {"numba", "pong-new", now.name}
    assert kept_in(tmp_path / "moved").name != now.name  # Numba would compile anew there


def test_where_nothing_can_be_kept_nothing_is_left_behind(tmp_path: Path) -> None:
    (tmp_path / "temporary").mkdir()
    for place in ("__pycache__", ".cache"):
        (tmp_path / place).touch()  # files, where root, too, can make no folders
    program = (
        "import sys; from pathlib import Path; from pong_emulator.compiling import kept_in; "
        "folder = kept_in(Path(sys.argv[1])); (folder / 'x').touch(); print(folder)"
    )
    places = {"HOME": str(tmp_path), "TMPDIR": str(tmp_path / "temporary")}
    done = run_python("-c", program, tmp_path, **places)
    assert done.returncode == 0, done.stderr
    assert Path(done.stdout.strip()).is_relative_to(tmp_path / "temporary")
    assert not list((tmp_path / "temporary").iterdir())


PLAY = """
import importlib.util
import gymnasium, numpy as np, pong_emulator
from ale_py import AtariVectorEnv
assert importlib.util.find_spec("torch") is None
envs = gymnasium.make_vec("pong_emulator/Pong-v0", 3, seed=5, render_mode="rgb_array")
ale = AtariVectorEnv("pong", 3, autoreset_mode="SameStep")
seen, ale_seen = envs.reset()[0], ale.reset(seed=5)[0]
for actions in np.random.default_rng(0).integers(6, size=(100, 3)):
    assert np.array_equal(seen, ale_seen)
    seen, ale_seen = envs.step(actions)[0], ale.step(actions)[0]
assert [picture.shape for picture in envs.render()] == [(210, 160, 3)] * 3
from pong_emulator.games import step_games
from pong_emulator.compiling import folder
print(folder(), sum(step_games.stats.cache_misses.values()))
"""


def run(*command: str | Path, **environment: str) -> str:
    """What a program prints; it must succeed."""
    keywords = {"env": os.environ | environment, "text": True, "timeout": 600}
    # Not in the repository, which is found first.
    return subprocess.check_output(command, cwd=Path(sys.executable).anchor, **keywords)


@pytest.mark.slow  # it takes minutes to install Numba and to compile
def test_a_wheel_plays_and_is_kept_where_its_user_may_not_write(tmp_path: Path) -> None:
    source = tmp_path / "source"  # building leaves things behind
    ignore = shutil.ignore_patterns("__pycache__")
    shutil.copytree(ROOT / "pong_emulator", source / "pong_emulator", ignore=ignore)
    for name in ("pyproject.toml", "LICENSE"):
        shutil.copy(ROOT / name, source)
    run(sys.executable, "-m", "venv", tmp_path / "venv")
    python = tmp_path / "venv" / "bin" / "python"
    run(python, "-m", "pip", "wheel", "-q", "--no-deps", "-w", tmp_path, source)
    (wheel,) = tmp_path.glob("pong_emulator-*.whl")
    run(python, "-m", "pip", "install", "-q", wheel)
    package = Path(run(python, "-c", "import pong_emulator; print(pong_emulator.__path__[0])")[:-1])
    assert (package / "py.typed").exists()
    shutil.rmtree(package / "__pycache__")
    (package / "__pycache__").touch()  # a file, where root, too, can make no folder
    command = [python, "-c", PLAY]
    with ThreadPoolExecutor() as pool:  # two at once
        list(pool.map(lambda _: run(*command, HOME=str(tmp_path)), range(2)))
    kept, misses = run(*command, HOME=str(tmp_path)).split()
    assert Path(kept).parent == tmp_path / ".cache" / "pong-emulator"
    assert misses == "0"
    printed = run(python, "-m", "pong_emulator", HOME=str(tmp_path))
    assert "from pong_emulator.tia import" in printed
    assert "def emulated_frame(s, g, t, boot" in printed
