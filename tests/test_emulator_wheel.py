"""The emulator by itself: a wheel of this repository, in a new environment without torch.

Takes minutes, most of them to install Numba and to compile: ``pytest -m slow`` and this file.
"""

import os
import shutil
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from conftest import ROOT

pytestmark = pytest.mark.slow

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


def run(*command: object, **environment: str) -> str:
    """What a program prints; it must succeed."""
    done = subprocess.run(
        [str(part) for part in command],
        cwd=Path(sys.executable).anchor,  # not in the repository, which is found first
        env=os.environ | environment, capture_output=True, text=True, timeout=600,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_it_plays_and_is_kept_where_its_user_may_not_write(tmp_path: Path) -> None:
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
