"""A million emulated frames beside ALE's: ``pytest -m campaign`` and the name of this file."""

from dataclasses import replace

import pytest
from against_ale import (
    SETTINGS,
    WON_GAMES,
    Following,
    Player,
    Random,
    Settings,
    Winning,
    compare_frames,
    compare_steps,
)

pytestmark = [pytest.mark.campaign, pytest.mark.usefixtures("console")]
NO_LIMIT = Settings().max_num_frames_per_episode
WHOLE = [s for s in SETTINGS if s.frame_skip in (1, 2, 4) and s.noop_max == 30]
WHOLE = [s for s in WHOLE if s.max_num_frames_per_episode == NO_LIMIT]


@pytest.mark.parametrize("player", [Random, Following])
@pytest.mark.parametrize("seed", range(10))
def test_emulated_frames(player: type[Player], seed: int) -> None:
    tally = compare_frames(player, seed, 30_000)
    assert tally.points > 0
    assert tally.lost > 0 or player is not Random


@pytest.mark.parametrize("number", range(len(WON_GAMES)))
def test_emulated_frames_of_games_that_are_won(number: int) -> None:
    assert compare_frames(Winning, number, 4 * len(WON_GAMES[number])).won == 1


@pytest.mark.parametrize("player", [Random, Following])
@pytest.mark.parametrize("settings", SETTINGS, ids=str)
def test_steps(settings: Settings, player: type[Player]) -> None:
    tally = compare_steps(settings, player, SETTINGS.index(settings), steps=200, games=4)
    assert (tally.truncated > 0) == (settings.max_num_frames_per_episode < NO_LIMIT)


@pytest.mark.parametrize("settings", WHOLE, ids=str)
def test_steps_of_games_that_are_won(settings: Settings) -> None:
    steps = 4 * max(map(len, WON_GAMES)) // settings.frame_skip
    tally = compare_steps(replace(settings, noop_max=0), Winning, 0, steps, len(WON_GAMES))
    assert tally.won == len(WON_GAMES)
