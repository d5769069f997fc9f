"""What devices can do, and the settings that follow from it."""

from types import SimpleNamespace

import pytest
import torch

from lib import devices
from lib.arguments import PrecisionOptions, parse
from lib.devices import choose_precision

CPU = torch.device("cpu")


def describe_cpu(monkeypatch: pytest.MonkeyPatch, onednn: bool, *features: str) -> None:
    """Let torch find a CPU with these features."""
    capabilities = {"avx512_f": True, **dict.fromkeys(features, True)}
    fake = SimpleNamespace(
        cpu=SimpleNamespace(get_capabilities=lambda: capabilities),
        backends=SimpleNamespace(mkldnn=SimpleNamespace(is_available=lambda: onednn)),
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
def test_precision_follows_from_the_gpu(monkeypatch, capability, precision):
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 1)
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: capability)
    assert choose_precision(torch.device("cuda")) == precision
    assert choose_precision(torch.device("cuda:1")) == "float32"  # there is none


@pytest.mark.parametrize("onednn", [False, True])
def test_precision_that_was_asked_for(monkeypatch, onednn, capsys):
    describe_cpu(monkeypatch, onednn, "amx_bf16")
    assert parse(PrecisionOptions, "", ["--amp"]).precision == "bfloat16"
    assert parse(PrecisionOptions, "", ["--precision", "float32"]).precision == "float32"
    assert parse(PrecisionOptions, "", ["--precision", "bfloat16"]).precision == "bfloat16"
    with pytest.raises(SystemExit):
        parse(PrecisionOptions, "", ["--precision", "float32", "--amp"])
    assert "--precision" in capsys.readouterr().err
