"""The emulator's benchmark: emulation alone, an interrupted run, and a peer that ends."""

import argparse
import json
from contextlib import ExitStack
from pathlib import Path

import numpy as np
import pytest

from benchmarks import Failed, emulator
from benchmarks.__main__ import main
from emulator import PongVectorEnv
from emulator.state import NOOPS_DRAWN, PLAYED_FRAMES

pytestmark = pytest.mark.usefixtures("console")


def test_emulation_alone_plays_the_same_games() -> None:
    whole, alone = (PongVectorEnv(2, seed=0, threads=1) for _ in range(2))
    whole.reset()
    alone.reset()
    for actions in np.random.default_rng(0).integers(6, size=(2_000, 2)):
        whole.step(actions)
        emulator.emulate_games(alone._state, 2, actions, 4, alone._beginning, alone._noops)
    assert np.array_equal(whole.ram, alone.ram)
    assert (alone._state[NOOPS_DRAWN] > 1).all()  # both games ended


def test_after_the_last_draw_of_noops_the_first_comes_again() -> None:
    envs = PongVectorEnv(1, seed=0, threads=1)
    envs.reset()
    noops, ends, before = envs._noops[:1].copy(), 0, 0
    for actions in np.random.default_rng(0).integers(6, size=(4_000, 1)):
        emulator.emulate_games(envs._state, 1, actions, 4, envs._beginning, noops)
        ends += envs._state[PLAYED_FRAMES, 0] < before
        before = envs._state[PLAYED_FRAMES, 0]
        assert envs._state[NOOPS_DRAWN, 0] == 1
    assert ends > 1


def test_an_interrupted_run_keeps_what_it_measured(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    start_players = emulator.start_players

    def interrupted(games: int, args: argparse.Namespace, cleanup: ExitStack) -> dict:
        if games == 4:
            raise KeyboardInterrupt
        return start_players(games, args, cleanup)

    monkeypatch.setattr(emulator, "start_players", interrupted)
    monkeypatch.setattr(emulator, "starts", lambda: (10.0, 1.0))  # it compiles for 15 seconds
    flags = ["--python", str(tmp_path / "none"), "--rounds", "2", "--milliseconds", "1"]
    assert main(["emulator", *flags, "--games", "1", "4", "16", "--out", str(tmp_path)]) == 130
    record = json.loads((tmp_path / "emulator.json").read_text())
    measured = [(who, games) for who, _, games, _ in record["agent_steps_per_second"]]
    everybody = [emulator.WRAPPERS, emulator.ALE_ALONE, emulator.ALONE, emulator.EMULATOR]
    assert measured == [(who, 1) for who in (*everybody, emulator.ALE)] * 2
    assert all(rate > 0 for *_, rate in record["agent_steps_per_second"])
    assert record["not_measured"] == [4, 16]
    told = (tmp_path / "emulator.md").read_text()
    assert "Not finished: 4 and 16 games were not measured" in told
    assert "First start 10.0 s" in told
    assert (tmp_path / "emulator.csv").exists()
    assert (tmp_path / "emulator.png").read_bytes().startswith(b"\x89PNG")
    assert "without EnvPool" in capsys.readouterr().out


def test_a_peer_that_ends_is_told(tmp_path: Path) -> None:
    python = tmp_path / "python"
    python.write_text("#!/bin/sh\nexit 1\n")
    python.chmod(0o755)
    with (
        emulator.Peer(python, "EnvPool", 1, 1) as peer,
        pytest.raises(Failed, match="EnvPool ended"),
    ):
        peer.wait()
