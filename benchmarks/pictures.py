"""README's pictures: the smoothed reward of all rungs, and one agent at three moments.

    cd results; A=xeon-amx-2core/solved/runs; B=epyc-zen5-2core/solved/runs
    C=epyc-zen4-2core
    PYTHONPATH=.. python -m benchmarks.pictures $A $B $C/solved/runs $C/held-out/runs
    PYTHONPATH=.. python -m benchmarks.pictures HALF_WAY.pt TRAINED.pt

Folders of runs give ladder.png and ladder-minutes.png. Of several runs of a rung, the one in the
middle is drawn: by its frames to 17, which a run that never learned reaches last. Most runs had
other programs beside them, so minutes are frames by the FPS in README, but of 07 and 08, which were
alone: they are those of the run.

Two checkpoints of a run give pong.gif: the part of a game in which the trained agent's lead grows
most, and the same game by the network before its first update and half way. README's are not kept:
they are those of 08 with seed 7, stopped after 300,000 frames and resumed, at f67d933.
"""

import argparse
import math
from collections import defaultdict
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import torch
from PIL import Image, ImageDraw, ImageFont

from benchmarks.charts import PALETTE, new_figure, save
from benchmarks.records import Record, read_records, readme_fps
from lib.learning.dqn_model import DQN
from lib.training.checkpoints import read_checkpoint
from lib.training.evaluation import SEED, load_agent, make_env, play_game

WIDTH, HEIGHT, HEADER, GAP = 160, 210, 40, 10  # of the Atari's screen, above it, and beside it
FPS, SECONDS, SPEED = 15, 8, 2  # of the GIF, and agent steps per picture


def main() -> None:
    """Read the runs, or the agents, and draw."""
    style = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=style)
    parser.add_argument("places", type=Path, nargs="+", help="folders of runs, or two checkpoints")
    parser.add_argument("--out", type=Path, default=Path(), help="where the pictures are written")
    args = parser.parse_args()
    draw = pong if args.places[0].is_file() else ladder
    draw(args.places, args.out)


def ladder(folders: list[Path], out: Path) -> None:
    """The smoothed reward over frames, and over minutes."""
    rungs: dict[str, list[Record]] = defaultdict(list)
    for record in (record for folder in folders for record in read_records(folder)):
        if not record.script.startswith("04") or not record.settings["noop_max"]:
            rungs[record.script].append(record)
    fps = readme_fps()
    for file, x_label in {"ladder": "million frames", "ladder-minutes": "minutes"}.items():
        figure, axes = new_figure("", 9, 4.8)
        for number, name in enumerate(sorted(rungs)):
            records = sorted(rungs[name], key=lambda one: one.to_bar[0] if one.solved else math.inf)
            runs = f", the middle of {len(records)} runs" * (len(records) > 1)
            curves, style = records[(len(records) - 1) // 2].curves, "-" if number < 5 else "--"
            x = curves.frames / 1e6
            if x_label == "minutes":
                alone = name.startswith(("07", "08"))
                x = curves.seconds / 60 if alone else curves.frames / fps[name] / 60
            axes.plot(x, curves.avg_reward, style, color=PALETTE[number % 10], label=name + runs)
        axes.axhline(17, color="tab:gray", linewidth=0.8)
        if x_label == "minutes":
            axes.set_xscale("log")
            axes.set_xlim(left=0.3)
            axes.xaxis.set_major_formatter("{x:g}")
        axes.set_xlabel(x_label)
        axes.set_ylabel("smoothed reward")
        axes.grid(alpha=0.3)
        figure.legend(loc="outside lower center", ncols=2, fontsize=10, frameon=False)
        save(figure, out / f"{file}.png")


class Film(gym.Wrapper):
    """Keeps every screen of a game, and the score until then: of the program, and of the agent."""

    def __init__(self, env: gym.Env) -> None:
        super().__init__(env)
        self.screens, self.score = list[tuple[Image.Image, list[int]]](), [0, 0]

    def step(self, action: Any) -> Any:
        """Step the environment, and keep its screen."""
        step, screen = self.env.step(action), self.env.render()
        self.score[float(step[1]) > 0] += step[1] != 0
        self.screens.append((Image.fromarray(np.asarray(screen)), [*self.score]))
        return step


def pong(checkpoints: list[Path], out: Path) -> None:
    """The same game by an agent untrained, half way and trained."""
    torch.set_num_threads(1)  # for one state
    torch.manual_seed(SEED)
    networks, count = dict[str, DQN](), SECONDS * FPS
    for name, content in zip(
        ("half way", "trained"), map(read_checkpoint, checkpoints), strict=True
    ):
        network, preprocessing = load_agent(content)
        networks.setdefault("untrained", type(network)(**network.arguments))
        networks[f"{name}, {content['progress']['frames']:,} frames"] = network
    games = []
    for network in networks.values():
        film = Film(make_env(preprocessing, render_mode="rgb_array"))
        play_game(film, network, 0.0, SEED)
        games.append(film.screens[::SPEED])
    lead = [won - lost for _, (lost, won) in games[-1]]
    begin = max(range(len(lead) - count), key=lambda i: lead[i + count] - lead[i])
    size, font = (3 * (WIDTH + GAP) - GAP, HEADER + HEIGHT), ImageFont.load_default(13)
    pictures = [Image.new("RGB", size) for _ in range(count)]
    for column, (name, game) in enumerate(zip(networks, games, strict=True)):
        left = column * (WIDTH + GAP)
        for number, picture in enumerate(pictures, start=begin):
            screen, (lost, won) = game[min(number, len(game) - 1)]  # one that has ended stays
            picture.paste(screen, (left, HEADER))
            text, place = f"{name}\n{lost} : {won}", (left + WIDTH / 2, HEADER / 2)
            ImageDraw.Draw(picture).text(place, text, "white", font, "mm", 8, "center")
    first, *others = (picture.quantize(32) for picture in pictures)  # as few colours as it has
    how: dict[str, Any] = {"append_images": others, "duration": 1000 // FPS, "loop": 0}
    first.save(out / "pong.gif", save_all=True, **how)


if __name__ == "__main__":
    main()
