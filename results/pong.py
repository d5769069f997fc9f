"""pong.gif: the same agent side by side, at several moments of its training.

    PYTHONPATH=. python results/pong.py HALF_WAY.pt TRAINED.pt --out results/pong.gif

Every checkpoint of a run plays the same start of the game, greedily. The first panel is the network
before its first update. The others name the frames that their agents had learned from: 08 with
held-out seed 3000 at d9984e4, and the same once more up to the half.
"""

import argparse
from pathlib import Path

import torch
from PIL import Image, ImageDraw, ImageFont

from lib.learning.dqn_model import NETWORKS
from lib.training.checkpoints import read_checkpoint
from lib.training.evaluation import SEED, load_agent, make_env

WIDTH, HEIGHT = 160, 210  # pixels of the Atari's screen
HEADER, GAP = 22, 10  # above it, and between two
NAMES = ("untrained", "half way", "trained")
FPS = 15
COLOURS = 32  # of the GIF's palette; the game has fewer

parser = argparse.ArgumentParser(description=__doc__)
parser.add_argument("checkpoints", nargs=2, type=Path, help="of one run, in their order")
parser.add_argument("--out", type=Path, default=Path("pong.gif"))
parser.add_argument("--seconds", type=int, default=8)
parser.add_argument("--skip", type=int, default=0, help="agent steps to leave out first")
parser.add_argument("--speed", type=int, default=2, help="agent steps per picture")
args = parser.parse_args()

contents = [read_checkpoint(file) for file in args.checkpoints]
agents = [load_agent(content) for content in contents]
trained, recipe = agents[0]
torch.manual_seed(SEED)
networks = [NETWORKS[type(trained).__name__](**trained.arguments)]
networks += [network for network, _ in agents]
frames = [0, *(content["progress"]["frames"] for content in contents)]

count = args.seconds * FPS
size = (WIDTH + GAP) * len(networks) - GAP, HEADER + HEIGHT
pictures = [Image.new("RGB", size) for _ in range(count)]
font = ImageFont.load_default(13)
for i, (network, learned) in enumerate(zip(networks, frames, strict=True)):
    env = make_env(recipe, render_mode="rgb_array")
    state, _ = env.reset(seed=SEED)
    over = False
    for step in range(args.skip + count * args.speed):
        if not over:  # a game that ends early keeps its last picture
            with torch.no_grad():
                action = int(network(torch.from_numpy(state[None].copy())).argmax())
            state, _, terminated, truncated, _ = env.step(action)
            over, screen = terminated or truncated, Image.fromarray(env.render())
        if step >= args.skip and (step - args.skip) % args.speed == 0:
            picture = pictures[(step - args.skip) // args.speed]
            picture.paste(screen, (i * (WIDTH + GAP), HEADER))
            place = (i * (WIDTH + GAP) + WIDTH / 2, HEADER / 2)
            text = NAMES[i] + f", {learned:,} frames" * (learned > 0)
            ImageDraw.Draw(picture).text(place, text, fill="white", font=font, anchor="mm")
first, *others = (picture.quantize(COLOURS) for picture in pictures)
first.save(args.out, save_all=True, append_images=others, duration=1000 // FPS, loop=0)
