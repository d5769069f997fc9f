"""The fault campaign, a little of it; ``pytest -m campaign`` runs more, see tests/faults."""

import random
from pathlib import Path

import pytest

from tests.faults import campaign

FEW = random.Random(5)


@pytest.mark.parametrize("fault", campaign.PLAYER_FAULTS)
def test_a_failing_player_ends_the_run(fault):
    campaign.player_fault(fault, FEW)


def test_a_killed_trainer_goes_on_without_a_seam():
    assert campaign.trainer_kills(2, FEW)["updates"] > 0


@pytest.mark.parametrize(("saves", "told"), [(True, "MB free"), (False, "No space left")])
def test_a_full_disk_leaves_the_last_checkpoint(saves, told):
    try:
        assert told in campaign.disk_full(FEW, saves)
    except PermissionError as error:
        pytest.skip(str(error))


def test_event_files_cut_anywhere(trained):
    for _ in range(2):
        campaign.cut_events(trained("01_baseline").folder, FEW)


@pytest.mark.campaign
def test_the_whole_campaign(tmp_path, monkeypatch):
    monkeypatch.setattr("sys.argv", ["campaign", "--out", str(tmp_path)])
    campaign.main()
    assert Path(tmp_path / "soak.csv").exists()
