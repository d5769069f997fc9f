"""What devices can do, and the settings that follow from it."""

import pytest
import torch

from lib.devices import choose_precision, compiles, missing_device
from lib.running.flags import parse
from lib.running.options import CommonOptions, PlayerOptions, PrecisionOptions
from lib.running.run import describe_device_error

CPU = torch.device("cpu")


@pytest.fixture
def two_gpus(monkeypatch: pytest.MonkeyPatch) -> None:
    """Torch can use two GPUs, or says so."""
    zeros = torch.zeros(2)
    monkeypatch.setattr(torch.cuda, "init", lambda: None)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    monkeypatch.setattr(torch, "ones", lambda *_, **__: zeros)


def describe_cpu(monkeypatch: pytest.MonkeyPatch, onednn: bool, *features: str) -> None:
    """Let torch find a CPU with these features."""
    capabilities = {"avx512_f": True, **dict.fromkeys(features, True)}
    monkeypatch.setattr(torch.cpu, "get_capabilities", lambda: capabilities)
    monkeypatch.setattr(torch.backends.mkldnn, "is_available", lambda: onednn)


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
NO_KERNEL = "CUDA error: no kernel image is available for execution on the device\nCUDA kernel ..."


@pytest.mark.parametrize(
    ("name", "fault", "told"),
    [
        ("init", RuntimeError(OLD_DRIVER), "cuda: The NVIDIA driver on your system is too old"),
        ("init", AssertionError("Torch not compiled with CUDA enabled"), "torch for CUDA, see"),
        ("ones", torch.AcceleratorError(NO_KERNEL), "on the device; install a torch for this GPU"),
        ("ones", torch.AcceleratorError("CUDA error: out of memory\n..."), "; other programs fill"),
        ("ones", None, None),
    ],
)
def test_what_torch_cannot_use_is_told_from_its_error(monkeypatch, name, fault, told):
    def act(*_, **__):
        if fault:
            raise fault
        return torch.zeros(2)

    monkeypatch.setattr(torch.cuda, "init", lambda: None)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 1)
    monkeypatch.setattr(torch if name == "ones" else torch.cuda, name, act)
    answer = missing_device("cuda")
    if told is None:
        assert answer is None
        assert "cuda:1: it finds 1 GPU" in missing_device("cuda:1")
    else:
        assert told in answer
        assert "\n" not in answer


def test_a_full_gpu_is_one_line():
    error = (
        "CUDA out of memory. Tried to allocate 1 GiB. GPU 0 has a total capacity of 1 GiB. Of ..."
    )
    told = describe_device_error(torch.OutOfMemoryError(error))
    assert told.startswith("CUDA out of memory. Tried to allocate")
    assert told.endswith("--replay-size may fit")
    assert "Of ..." not in told


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
    assert parse(PrecisionOptions, "", ["--device", "mps"]).precision == "float32"
    assert not compiles(torch.device("mps"))
