"""The emulator on a GPU: tests that need none, and its games if there is one.

Without a GPU, Numba's simulator runs the kernels in Python, thread by thread, which tests their
logic, and NVIDIA's compiler and linker must accept them for sm_90a.
"""

import inspect
from importlib.util import find_spec
from types import SimpleNamespace

from pong_emulator import PongVectorEnv

import numpy as np
import pytest
import torch
from conftest import run_python

SM_90A = (9, 0, "a")  # an H100's or H200's compute capability, as Numba compiles for it
pytestmark = pytest.mark.skipif(
    find_spec("numba_cuda") is None, reason="pip install -r requirements-cuda.txt"
)
needs_gpu = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs an NVIDIA GPU")

SIMULATE = """
import sys
import numpy as np
from numba import cuda as numba_cuda
from numba.cuda.simulator.cudadrv.devices import FakeCUDAContext
from numba.cuda.simulator.kernel import FakeCUDAKernel
from pong_emulator import PongVectorEnv, cuda, vector_env

cuda.VIEWERS = 4  # in place of 128: each is a thread of Python
vector_env.DRAWS = cuda.DRAWS = 8  # in place of 64: so few resets are drawn at once
cuda.WATCH = 2  # in place of 16
current, launch = [0], FakeCUDAKernel.__call__


class Gpu(FakeCUDAContext):  # one of two; the simulator has one, and knows no current one
    def __enter__(self):
        current.append(self.id)

    def __exit__(self, *_):
        current.pop()


def launch_there(kernel, *arguments):
    assert current[-1] == 1
    launch(kernel, *arguments)


numba_cuda.gpus.lst = Gpu(0), Gpu(1)
FakeCUDAKernel.__call__ = launch_there
np.savez(sys.argv[3], *play(np.load(sys.argv[2]), eval(sys.argv[1]) | {"device": "cuda:1"}))
"""


def play(actions, settings):
    """Each step's results, frames and RAM, and the first game's last screen."""
    resets = settings.pop("resets", 1)
    envs = PongVectorEnv(actions.shape[1], **settings)
    for _ in range(resets):
        observations, info = envs.reset()
    steps = [(observations, *np.zeros((3, len(observations)), int), *info.values(), envs.ram)]
    for action in actions:
        *results, info = envs.step(action)
        steps.append((*results, info["episode_frame_number"], envs.ram))
    return [*map(np.stack, zip(*steps, strict=True)), envs.screen(0)]


@pytest.mark.usefixtures("console")
@pytest.mark.parametrize(
    ("settings", "steps", "games"),
    [
        ({"stack": 2, "noop_max": 4, "max_num_frames_per_episode": 11, "games_per_warp": 1}, 5, 2),
        ({"seed": 4, "noop_max": 0, "max_pool": False, "frame_skip": 2}, 5, 2),
        ({"rows": (20, 61)}, 2, 1),
        ({"rows": (20, 22), "resets": 19}, 4, 1),
        ({"seed": 5, "frame_skip": 1, "max_num_frames_per_episode": 1}, 12, 1),
    ],
    ids=["cut short", "every picture alone", "some rows", "resets without a step", "many resets"],
)
def test_simulated_games_are_those_of_the_cpu(settings, steps, games, tmp_path):
    settings = {"seed": 3, "stack": 1, "noop_max": 3} | settings
    files = tmp_path / "actions.npy", tmp_path / "results.npz"
    actions = np.random.default_rng(0).integers(6, size=(steps, games))
    np.save(files[0], actions)
    program = inspect.getsource(play) + SIMULATE
    simulator = {"NUMBA_ENABLE_CUDASIM": "1", "NUMBA_DISABLE_JIT": "1"}
    done = run_python("-c", program, settings, *files, **simulator)
    assert done.returncode == 0, done.stderr
    here = play(actions, settings)
    for one, other in zip(np.load(files[1]).values(), here, strict=True):
        assert np.array_equal(one, other)
    assert here[3].any() == ("max_num_frames_per_episode" in settings)


def test_means_of_pixels_are_those_of_the_cpu():
    from pong_emulator.cuda import small_pixel
    from pong_emulator.preprocessing import shrink

    rows = np.random.default_rng(0).integers(256, size=(2, 210, 160), dtype=np.uint8)
    lines, small = np.arange(210, dtype=np.int32), np.empty((84, 84), np.uint8)
    shrink(rows[0], lines, rows[1], lines, (0, 84), np.zeros(162, np.int32), small)
    both = np.stack([lines, lines])
    there = [[small_pixel(rows, both, y, x) for x in range(84)] for y in range(84)]
    assert np.array_equal(small, there)
    # Some of 60 that are half way go to the odd grey, as OpenCV's sums of fractions do.
    exact = rows.max(axis=0).repeat(21, axis=1).repeat(2, axis=0).reshape(84, 5, 84, 40)
    assert (small != np.rint(exact.mean(axis=(1, 3)))).any()


def test_numba_cuda_compiles_with_a_numpy_without_row_stack():
    program = "import numpy as np; vars(np).pop('row_stack', None); import pong_emulator.cuda; "
    done = run_python("-c", program + "import numba.cuda.np.arrayobj")
    assert done.returncode == 0, done.stderr


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU, which compiles them, too")
def test_the_kernels_are_compiled_for_sm_90a(monkeypatch):
    """As on a GPU: to LTO-IR, and from that to machine code, optimised at link time."""
    from pong_emulator.cuda import KERNELS

    import numba.cuda.dispatcher
    from cuda.bindings import nvjitlink
    from numba import cuda, void

    device = SimpleNamespace(compute_capability=SM_90A[:2])
    monkeypatch.setattr(numba.cuda.dispatcher, "get_current_device", lambda: device)
    for kernel, arguments in KERNELS.items():
        how = {"device": False, "abi": "numba", "cc": SM_90A, "output": "ltoir"}
        code, _ = cuda.compile(kernel.py_func, void(*arguments), **how)
        linker = nvjitlink.create(2, ["-lto", "-arch=sm_90a"])
        nvjitlink.add_data(linker, nvjitlink.InputType.LTOIR, code, len(code), "kernel")
        nvjitlink.complete(linker)
        size = nvjitlink.get_linked_cubin_size(linker)
        assert 1_000 < size < 1_300_000
        nvjitlink.destroy(linker)


@needs_gpu
def test_1024_games_on_a_gpu_are_those_of_the_cpu():
    from pong_emulator.cuda import KERNELS  # launched as they are compiled before

    n = 1_024
    settings = {"seed": 7, "stack": 1, "max_num_frames_per_episode": 6_000}
    here, there = PongVectorEnv(n, **settings), PongVectorEnv(n, device="cuda", **settings)
    one, other = here.reset()[0], there.reset()[0]
    ends = 0
    for actions in np.random.default_rng(0).integers(6, size=(2_000, n)):
        assert np.array_equal(one, other.cpu().numpy())
        assert np.array_equal(here.ram, there.ram)
        one, *results, _ = here.step(actions)
        other, *results_there, _ = there.step(torch.from_numpy(actions).cuda())
        for a, b in zip(results, results_there, strict=True):
            assert np.array_equal(a, b.cpu().numpy())
        ends += int(results[1].sum() + results[2].sum())
    assert ends >= n
    assert {tuple(kernel.overloads) for kernel in KERNELS} == {(a,) for a in KERNELS.values()}


@needs_gpu
def test_a_step_waits_for_nothing():
    envs = PongVectorEnv(64, device="cuda", stack=1, seed=0)
    envs.reset()
    actions = torch.zeros(64, dtype=torch.int64, device="cuda")
    for _ in range(3):
        envs.step(actions)  # compiled with the first
    torch.cuda.set_sync_debug_mode("error")
    try:
        for _ in range(40):  # beyond two looks at the counts
            envs.step(actions)
    finally:
        torch.cuda.set_sync_debug_mode("default")
