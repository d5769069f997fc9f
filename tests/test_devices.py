"""Capabilities of devices, and the settings that follow from them."""

import os
import re
import subprocess
import sys
from unittest.mock import Mock

from lib import devices
from lib.devices import compiles, cores, missing_device, playing_threads
from lib.envs.gpu_vector_env import emulated_games
from lib.gpu_checks import fallbacks, try_optimised
from lib.training import launch as rungs
from lib.training.flags import parse
from lib.training.machine import free_cores, prepare_torch
from lib.training.options import CommonOptions, PlayerOptions, PrecisionOptions, ReplayOptions
from lib.training.run import Run, describe_device_error
from lib.training.speedrun_options import SpeedrunOptions

import pytest
import torch
from conftest import one_line, run_python
from helpers import listed


@pytest.fixture
def gpus(monkeypatch: pytest.MonkeyPatch) -> None:
    """Torch can use two GPUs and Apple's, or says so."""
    zeros = torch.zeros(2)
    monkeypatch.setattr(torch.cuda, "init", lambda: None)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    monkeypatch.setattr(torch, "ones", lambda *_, **__: zeros)
    monkeypatch.setattr(torch.backends.mps, "is_available", lambda: True)


def test_precision_follows_from_the_device_or_is_asked_for(monkeypatch, gpus):
    for features, onednn, precision in (
        ((), True, "float32"),
        (("avx512_bf16",), True, "bfloat16"),
        (("neon", "bf16"), True, "bfloat16"),
        (("neon", "bf16"), False, "float32"),  # Apple
    ):
        available = dict.fromkeys(features, True)
        monkeypatch.setattr(torch.cpu, "get_capabilities", lambda known=available: known)
        monkeypatch.setattr(torch.backends.mkldnn, "is_available", lambda has=onednn: has)
        options = parse(PrecisionOptions, "", [])
        assert (options.precision, options.dtype) == (precision, getattr(torch, precision))
        assert parse(PrecisionOptions, "", ["--amp"]).precision == "bfloat16"
        assert parse(PrecisionOptions, "", ["--precision", "float32"]).precision == "float32"
    for capability, precision in (((7, 5), "float32"), ((8, 0), "bfloat16")):
        monkeypatch.setattr(torch.cuda, "get_device_capability", lambda _, found=capability: found)
        assert parse(PrecisionOptions, "", ["--cuda"]).precision == precision
        refused = CommonOptions(cuda=True, amp=True).validation_error()
        assert refused is None if precision == "bfloat16" else "no units for bfloat16" in refused
    # On Apple's GPU nothing is compiled, and bfloat16 is not the default.
    assert parse(PrecisionOptions, "", ["--device", "mps"]).precision == "float32"
    assert not compiles(torch.device("mps"))


def test_what_torch_cannot_use_is_told_from_its_error(monkeypatch, gpus):
    assert missing_device("cuda:1") is missing_device("mps") is None
    assert "cuda:2: it finds 2 GPUs" in missing_device("cuda:2")
    for name in ("xpu", "cuda:01"):
        assert f"{name!r} is not cpu, cuda" in missing_device(name)
    monkeypatch.setattr(torch.backends.mps, "is_available", lambda: False)
    assert "the GPU mps: it finds none" in missing_device("mps")
    for fault, message in (
        (AssertionError("Torch not compiled with CUDA enabled"), "install a torch for CUDA"),
        (torch.AcceleratorError("CUDA error: no kernel image\nCUDA"), "image; install a torch for"),
        (RuntimeError("CUDA error: out of memory"), "out of memory; other programs fill its"),
    ):
        monkeypatch.setattr(torch, "ones", Mock(side_effect=fault))
        assert message in one_line(missing_device("cuda"))
    error = "CUDA out of memory. Tried to allocate 1 GiB. GPU 0 has a total capacity of 1 GiB. ..."
    message = describe_device_error(torch.OutOfMemoryError(error))
    smaller = "a smaller --batch-size, --replay-size or --envs may fit"
    assert re.match(f"CUDA out of memory. Tried to allocate .*; {smaller}$", message)
    assert describe_device_error(RuntimeError("cuDNN error: X\nmore")) == "cuDNN error: X"
    assert describe_device_error(RuntimeError("a mistake")) is None  # which needs its traceback


def test_what_fails_is_told_in_the_line_of_its_error_that_says_why():
    compiler = "inductor raised:\nC++ compile error\n\n a.cpp:1:9: fatal error: no Python.h"
    assert devices.first_line(RuntimeError(compiler)) == "a.cpp:1:9: fatal error: no Python.h"
    assert devices.first_line(RuntimeError("Inductor raised:\n\n no g++ \nmore")) == "no g++"
    assert devices.first_line(MemoryError()) == "MemoryError"
    assert try_optimised("a part", 7, Mock(side_effect=KeyError("x" * 400))) == 7
    assert fallbacks == ["a part: KeyError: '" + "x" * 299]


def test_the_switches_of_torch_are_those_that_were_asked_for(tmp_path):
    for amp, dtype in ((True, torch.bfloat16), (False, torch.float32)):
        run = Run(CommonOptions(amp=amp), torch.device("cpu"), tmp_path, None, "01")
        with run.autocast():
            assert (torch.ones(2, 2) @ torch.ones(2, 2)).dtype == dtype
    prepare_torch(0)
    assert (torch.full((8,), 2e-38) / 4 == 0).all()  # denormal numbers are slow


def test_the_gpu_that_is_asked_for_becomes_the_current_one(monkeypatch, gpus, ends):
    current = []
    monkeypatch.setattr(torch._C, "_cuda_setDevice", current.append, raising=False)
    monkeypatch.setattr(rungs, "prepare_torch", Mock(side_effect=KeyboardInterrupt))
    for flags in (["--cuda"], ["--device", "cuda"], ["--device", "cuda:1"]):
        assert ends(lambda: rungs.launch(Mock(), CommonOptions, ""), "06.py", *flags).code == 130
    assert current == [0, 0, 1]


def test_a_player_acts_where_it_can_reach_the_weights(monkeypatch, gpus, tmp_path, ends):
    second = parse(PlayerOptions, "", ["--cuda", "--device", "cuda:1"])
    assert (second.training_device, second.player_device) == (torch.device("cuda:1"), "cuda:1")
    apple = parse(PlayerOptions, "", ["--device", "mps"])
    assert (apple.training_device, apple.player_device) == (torch.device("cpu"), "cpu")
    main = lambda: rungs.launch(Mock(side_effect=KeyboardInterrupt), PlayerOptions, "")  # noqa: E731
    told = ends(main, "03.py", "--device", "mps", "--run-dir", tmp_path).out
    for text in (told, listed(*tmp_path.iterdir())["left_out"]):
        assert "training on the CPU instead" in " ".join(text.split())
    monkeypatch.setattr("sys.platform", "win32")
    windows = parse(PlayerOptions, "", ["--cuda"])
    assert (windows.training_device, windows.player_device) == (torch.device("cuda"), "cpu")
    assert all("the CPU" in [*options.notices()][-1] for options in (apple, windows))
    assert not [*parse(PlayerOptions, "", []).notices()]


def test_games_that_cannot_play_on_a_gpu_get_all_cores(monkeypatch):
    monkeypatch.setattr("lib.envs.gpu_vector_env.cores", lambda: 8)
    monkeypatch.setattr("pong_emulator.PongVectorEnv", made := Mock())
    emulated_games(4, torch.device("mps"), SpeedrunOptions().preprocessing, 1)
    assert (made.call_args.kwargs["device"], made.call_args.kwargs["threads"]) == ("cpu", 8)


@pytest.mark.skipif(cores() < (os.cpu_count() or 1), reason="a container's others are not seen")
def test_cores_that_others_use_are_not_free():
    others = [subprocess.Popen([sys.executable, "-c", "while True: pass"]) for _ in range(cores())]
    try:
        assert free_cores() == 1  # never none
    finally:
        for other in others:
            other.kill()
            other.wait()


def test_a_container_may_count_its_cores_anew_and_limit_them_and_memory(monkeypatch, tmp_path):
    monkeypatch.setattr("psutil.cpu_percent", lambda *_, **__: [0.0, 0.0, 100.0, 100.0])
    for mine, free in (({2, 3}, 1), ({4, 10_000}, 2)):
        monkeypatch.setattr(os, "sched_getaffinity", lambda _, mine=mine: mine, raising=False)
        assert free_cores() == free
    monkeypatch.setattr(devices, "CONTAINER", tmp_path)
    for folder in ("cpu", "memory"):
        (tmp_path / folder).mkdir()
    (tmp_path / "cpu" / "cpu.cfs_period_us").write_text("100000")
    for limit in (tmp_path / "cpu.max", tmp_path / "cpu" / "cpu.cfs_quota_us"):
        one = "100000" if limit.parent == tmp_path else ""  # version 2 has both in one file
        for text, count in (("max", 2), ("-1", 2), ("150000", 1), ("50000", 1)):
            limit.write_text(f"{text} {one}")
            assert cores() == free_cores() == playing_threads(1_000) == count
        limit.unlink()
    monkeypatch.delattr(os, "sched_getaffinity")  # as on Windows
    monkeypatch.setattr(os, "cpu_count", lambda: 6)
    assert cores() == 6
    assert [playing_threads(games) for games in (1, 15, 16, 1_000)] == [1, 1, 2, 4]
    for limit in (tmp_path / "memory.max", tmp_path / "memory" / "memory.limit_in_bytes"):
        limit.write_text("max\n")
        assert ReplayOptions(replay_size=10**6, env="Pong").validation_error().startswith("--env")
        limit.write_text(f"{2 * 2**30}\n")
        error = ReplayOptions(replay_size=10**6).validation_error()
        assert error.startswith("--replay-size: 1,000,000 transitions take 7.1 GiB; this machine")
        limit.unlink()


@pytest.mark.parametrize("shell", [{}, {"GOMP_SPINCOUNT": "7"}])
def test_waiting_threads_sleep_soon_unless_the_shell_says_otherwise(shell: dict[str, str]) -> None:
    """OpenMP reads this when torch is imported."""
    program = """
import os, runpy, sys
def find_spec(name, *_):
    if name == "torch":
        print(os.environ.get("GOMP_SPINCOUNT"))
sys.meta_path.insert(0, type("Watch", (), {"find_spec": find_spec}))
sys.argv[1:] = ["--help"]
runpy.run_path("01_baseline.py", run_name="__main__")
"""
    done = run_python("-c", program, **shell)
    assert done.stdout.splitlines()[0] == shell.get("GOMP_SPINCOUNT", "1000"), done.stderr
