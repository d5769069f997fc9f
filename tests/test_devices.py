"""What devices can do, and the settings that follow from it."""

from types import SimpleNamespace

import pytest
import torch

from lib import devices
from lib.devices import choose_precision, has_kernels, missing_device
from lib.learning.compiled_update import CompiledUpdate
from lib.running.flags import parse
from lib.running.options import CommonOptions, PlayerOptions, PrecisionOptions

CPU = torch.device("cpu")


@pytest.fixture
def two_gpus(monkeypatch: pytest.MonkeyPatch) -> None:
    """Torch can use two GPUs, or says so."""
    monkeypatch.setattr(devices, "gpu_fault", lambda device: None)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)


def describe_cpu(monkeypatch: pytest.MonkeyPatch, onednn: bool, *features: str) -> None:
    """Let torch find a CPU with these features."""
    capabilities = {"avx512_f": True, **dict.fromkeys(features, True)}
    fake = SimpleNamespace(
        device=torch.device,
        cpu=SimpleNamespace(get_capabilities=lambda: capabilities),
        cuda=torch.cuda,
        backends=SimpleNamespace(
            mkldnn=SimpleNamespace(is_available=lambda: onednn), mps=torch.backends.mps
        ),
    )
    monkeypatch.setattr(devices, "torch", fake)


@pytest.mark.parametrize(
    ("features", "onednn", "precision"),
    [
        ((), True, "float32"),
        (("amx_bf16",), True, "bfloat16"),
        (("avx512_bf16",), True, "bfloat16"),
        (("neon", "bf16"), True, "bfloat16"),
        (("neon", "bf16"), False, "float32"),  # Apple
        (("neon",), True, "float32"),
    ],
)
def test_precision_follows_from_the_cpu(monkeypatch, features, onednn, precision):
    describe_cpu(monkeypatch, onednn, *features)
    assert choose_precision(CPU) == precision
    options = parse(PrecisionOptions, "", [])
    assert options.precision == precision
    assert options.dtype == getattr(torch, precision)


@pytest.mark.parametrize(
    ("capability", "precision"), [((7, 5), "float32"), ((8, 0), "bfloat16"), ((9, 0), "bfloat16")]
)
def test_precision_follows_from_the_gpu(monkeypatch, two_gpus, capability, precision):
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: capability)
    assert choose_precision(torch.device("cuda")) == precision
    assert parse(PrecisionOptions, "", ["--cuda"]).precision == precision


@pytest.mark.parametrize("onednn", [False, True])
def test_precision_that_was_asked_for(monkeypatch, onednn, capsys):
    describe_cpu(monkeypatch, onednn, "amx_bf16")
    assert parse(PrecisionOptions, "", ["--amp"]).precision == "bfloat16"
    assert parse(PrecisionOptions, "", ["--precision", "float32"]).precision == "float32"
    assert parse(PrecisionOptions, "", ["--precision", "bfloat16"]).precision == "bfloat16"
    with pytest.raises(SystemExit):
        parse(PrecisionOptions, "", ["--precision", "float32", "--amp"])
    assert "--precision" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("flags", "device", "cuda"),
    [
        ([], "cpu", False),
        (["--device", "cpu"], "cpu", False),
        (["--cuda"], "cuda", True),
        (["--device", "cuda"], "cuda", True),
        (["--device", "cuda:1"], "cuda:1", True),
        (["--cuda", "--device", "cuda:1"], "cuda:1", True),
        (["--device", "mps"], "mps", False),
    ],
)
def test_where_to_train(monkeypatch, two_gpus, flags, device, cuda):
    monkeypatch.setattr(torch.backends.mps, "is_available", lambda: True)
    options = parse(CommonOptions, "", flags)
    assert (options.device, options.cuda) == (device, cuda)
    assert options.training_device == torch.device(device)
    assert len(list(options.remarks())) == (device == "mps")


@pytest.mark.parametrize("name", ["cuda", "cuda:0", "cuda:1", "mps", "toaster", "xpu", "cuda:x"])
def test_a_device_that_is_not_there_is_refused_in_one_line(monkeypatch, name, capsys):
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 0)
    monkeypatch.setattr(torch.backends.mps, "is_available", lambda: False)
    for options in (CommonOptions, PlayerOptions, PrecisionOptions):
        with pytest.raises(SystemExit) as end:
            parse(options, "", ["--device", name])
        error = capsys.readouterr().err
        assert end.value.code == 2
        assert (len(error.splitlines()), name in error) == (1, True), error


OLD_DRIVER = """The NVIDIA driver on your system is too old (found version 11040). Please update ...
Alternatively, install an older torch"""


@pytest.mark.parametrize(
    ("fault", "told"),
    [
        ({"init": RuntimeError(OLD_DRIVER)}, "cuda: The NVIDIA driver on your system is too old"),
        ({"init": AssertionError("Torch not compiled with CUDA enabled")}, "install one for CUDA"),
        ({"device_count": 1, "device": "cuda:1"}, "cuda:1: it finds 1 GPU"),
        (
            {"get_device_capability": (6, 1)},
            "it has no kernels for compute capability 6.1, only for sm_75, sm_120, compute_120; "
            "install a torch that has them",
        ),
        (
            {"ones": torch.AcceleratorError("CUDA error: out of memory\nCUDA kernel errors ...")},
            "CUDA error: out of memory; other programs fill its memory",
        ),
        ({"ones": RuntimeError("CUDA error: all CUDA-capable devices are busy")}, "are busy"),
        ({}, None),
    ],
    ids=["driver", "torch for CPUs", "one GPU", "6.1", "full", "taken", "all is well"],
)
def test_what_torch_cannot_use_is_told_from_facts(monkeypatch, fault, told):
    def act(outcome):
        def call(*_, **__):
            if isinstance(outcome, Exception):
                raise outcome
            return outcome

        return call

    built = ["sm_75", "sm_120", "compute_120"]
    facts = {"init": None, "device_count": 2, "get_arch_list": built} | {
        name: outcome for name, outcome in fault.items() if name not in ("ones", "device")
    }
    for name, outcome in ({"get_device_capability": (7, 5)} | facts).items():
        monkeypatch.setattr(torch.cuda, name, act(outcome))
    monkeypatch.setattr(torch, "ones", act(fault.get("ones", torch.zeros(2))))
    answer = missing_device(fault.get("device", "cuda"))
    if told is None:
        assert answer is None
    else:
        assert told in answer
        assert "\n" not in answer


@pytest.mark.parametrize(
    ("capability", "built", "runs"),
    [
        ((6, 1), "sm_50 sm_60 sm_70", True),
        ((6, 1), "sm_61", True),
        ((6, 0), "sm_61", False),
        ((6, 1), "sm_75 sm_80 compute_90", False),
        ((12, 0), "sm_90 compute_90", True),
        ((12, 0), "sm_90a sm_100", False),
        ((9, 0), "sm_90a", True),
        ((9, 0), "gfx942", True),  # another maker's, of which nothing is known here
    ],
)
def test_kernels_run_on_their_major_version_and_what_the_driver_translates(capability, built, runs):
    assert has_kernels(capability, built.split()) == runs


def test_cuda_and_another_device_contradict(capsys):
    with pytest.raises(SystemExit):
        parse(CommonOptions, "", ["--cuda", "--device", "cpu"])
    assert "--cuda: contradicts --device cpu" in capsys.readouterr().err


def test_a_player_acts_where_it_can_reach_the_weights(monkeypatch, two_gpus):
    monkeypatch.setattr(torch.backends.mps, "is_available", lambda: True)
    assert parse(PlayerOptions, "", ["--device", "cuda:1"]).player_device == "cuda:1"
    apple = parse(PlayerOptions, "", ["--device", "mps"])
    assert (apple.training_device, apple.player_device) == (torch.device("cpu"), "cpu")
    assert "training on the CPU" in list(apple.remarks())[-1]
    monkeypatch.setattr("sys.platform", "win32")
    windows = parse(PlayerOptions, "", ["--cuda"])
    assert (windows.training_device, windows.player_device) == (torch.device("cuda"), "cpu")
    assert "on Windows" in list(windows.remarks())[-1]


def test_on_apples_gpu_nothing_is_compiled_and_bfloat16_is_not_the_default(monkeypatch):
    monkeypatch.setattr(torch.backends.mps, "is_available", lambda: True)
    monkeypatch.setattr(torch, "compile", lambda *_, **__: pytest.fail("compiles"))
    assert parse(PrecisionOptions, "", ["--device", "mps"]).precision == "float32"
    learn = CompiledUpdate(lambda: torch.tensor(3.0), torch.device("mps"))
    assert [learn().item() for _ in learn.ready_for([None, None])] == [3.0, 3.0]
