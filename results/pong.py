"""pong.gif: the same agent side by side, at several moments of its training.

    PYTHONPATH=. python results/pong.py HALF_WAY.pt TRAINED.pt --out results/pong.gif

Every checkpoint of a run plays the same game, and draws its actions as in training. The clip
is the part of it in which the trained agent's lead grows most. The first panel is the network
before its first update. The others name the frames that their agents had learned from: 08 with
seed 7, stopped after 300,000 frames and resumed, at f67d933.
"""

import argparse
from pathlib import Path

import torch
from PIL import Image, ImageDraw, ImageFont

from lib.learning.agents import drawn
from lib.learning.dqn_model import DQN, NETWORKS
from lib.training.checkpoints import read_checkpoint
from lib.training.evaluation import SEED, load_agent, make_env

WIDTH, HEIGHT = 160, 210  # pixels of the Atari's screen
HEADER, GAP = 40, 10  # above it, and between two
NAMES = ("untrained", "half way", "trained")
FPS = 15
COLOURS = 32  # of the GIF's palette; the game has fewer

parser = argparse.ArgumentParser(description=__doc__)
parser.add_argument("checkpoints", nargs=2, type=Path, help="of one run, in their order")
parser.add_argument("--out", type=Path, default=Path("pong.gif"))
parser.add_argument("--seconds", type=int, default=8)
parser.add_argument("--speed", type=int, default=2, help="agent steps per picture")
args = parser.parse_args()

contents = [read_checkpoint(file) for file in args.checkpoints]
agents = [load_agent(content) for content in contents]
trained, recipe = agents[0]
torch.set_num_threads(1)  # for one state
torch.manual_seed(SEED)
networks = [NETWORKS[type(trained).__name__](**trained.arguments)]
networks += [network for network, _ in agents]
frames = [0, *(content["progress"]["frames"] for content in contents)]


def play(network: DQN) -> list[tuple[Image.Image, int, int]]:
    """A game's pictures, each with the score until then: of the program, and of the agent."""
    env, score, pictures = make_env(recipe, render_mode="rgb_array"), [0, 0], []
    state, info = env.reset(seed=SEED)
    step = 0
    while "episode" not in info:
        with torch.no_grad():
            values = network(torch.from_numpy(state[None].copy()))
        action = int(drawn(values, network.temperature))
        state, reward, _, _, info = env.step(action)
        score[0] += reward < 0
        score[1] += reward > 0
        if step % args.speed == 0:
            pictures.append((Image.fromarray(env.render()), *score))
        step += 1
    return pictures


count = args.seconds * FPS
size = (WIDTH + GAP) * len(networks) - GAP, HEADER + HEIGHT
pictures = [Image.new("RGB", size) for _ in range(count)]
font = ImageFont.load_default(13)
games = [play(network) for network in networks]
lead = [won - lost for _, lost, won in games[-1]]
begin = max(range(len(lead) - count), key=lambda start: lead[start + count] - lead[start])
for i, (game, learned) in enumerate(zip(games, frames, strict=True)):
    left = i * (WIDTH + GAP)
    for number, picture in enumerate(pictures, start=begin):
        screen, *score = game[min(number, len(game) - 1)]  # one that has ended keeps its last one
        picture.paste(screen, (left, HEADER))
        name = NAMES[i] + f", {learned:,} frames" * (learned > 0)
        for line, text in enumerate((name, "{} : {}".format(*score))):
            place = left + WIDTH / 2, HEADER * (2 * line + 1) / 4
            ImageDraw.Draw(picture).text(place, text, fill="white", font=font, anchor="mm")
first, *others = (picture.quantize(COLOURS) for picture in pictures)
first.save(args.out, save_all=True, append_images=others, duration=1000 // FPS, loop=0)
