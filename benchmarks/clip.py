"""The same agent side by side, at several moments of its training, as a GIF.

    python -m benchmarks clip EARLY.pt LATE.pt --out pong.gif

Every checkpoint of a run plays the same start of the game. The first panel is the network before
its first update. A panel names the frames that its agent had learned from; the score is in the
game's picture.
"""

import argparse
from pathlib import Path

import torch
from PIL import Image, ImageDraw, ImageFont

from benchmarks import UserError
from lib.learning.dqn_model import DQN, NETWORKS
from lib.recipe import Recipe
from lib.running.checkpoints import CheckpointError, read_checkpoint
from lib.running.evaluation import SEED, load_agent, make_env

PANEL = 160, 210  # pixels of the Atari's screen
HEADER = 22  # pixels above a panel
FPS = 15  # a picture per agent step is the Atari's own speed
COLOURS = 32  # of the GIF's palette; the game has fewer


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the flags of this command."""
    parser.add_argument("checkpoints", nargs="+", type=Path, help="of one run, in their order")
    parser.add_argument("--out", type=Path, default=Path("pong.gif"), help="the GIF")
    parser.add_argument("--seconds", type=int, default=8, help="length (default: %(default)s)")
    parser.add_argument("--skip", type=int, default=0, help="agent steps to leave out first")
    parser.add_argument("--speed", type=int, default=2, help="agent steps per picture")
    parser.add_argument("--seed", type=int, default=SEED, help="of the game")


def run(args: argparse.Namespace) -> int:
    """Play and write the clip."""
    try:
        contents = [read_checkpoint(file) for file in args.checkpoints]
        agents = [load_agent(content) for content in contents]
    except CheckpointError as error:
        raise UserError(str(error)) from None
    trained, recipe = agents[0]
    torch.manual_seed(args.seed)
    untrained = NETWORKS[type(trained).__name__](**trained.arguments)
    networks = [untrained, *(network for network, _ in agents)]
    frames = [0, *(content["progress"]["frames"] for content in contents)]
    games = [play(network, recipe, args) for network in networks]
    font = ImageFont.load_default(13)
    pictures = []
    for moment in zip(*games, strict=True):
        picture = Image.new("RGB", (PANEL[0] * len(games), HEADER + PANEL[1]))
        draw = ImageDraw.Draw(picture)
        for i, (panel, learned) in enumerate(zip(moment, frames, strict=True)):
            picture.paste(panel, (i * PANEL[0], HEADER))
            middle = (i + 0.5) * PANEL[0], HEADER / 2
            draw.text(middle, f"{learned:,} frames", fill="white", font=font, anchor="mm")
        pictures.append(picture.quantize(COLOURS))
    pictures[0].save(
        args.out, save_all=True, append_images=pictures[1:], duration=1000 // FPS, loop=0
    )
    print(f"{args.out}: {len(pictures)} pictures, {args.out.stat().st_size / 1e6:.1f} MB")
    return 0


def play(network: DQN, recipe: Recipe, args: argparse.Namespace) -> list[Image.Image]:
    """The pictures of one agent's game; a game that ends early keeps its last picture."""
    env = make_env(recipe, render_mode="rgb_array")
    state, _ = env.reset(seed=args.seed)
    pictures: list[Image.Image] = []
    wanted = args.seconds * FPS
    for step in range(args.skip + wanted * args.speed):
        with torch.no_grad():
            action = int(network(torch.from_numpy(state[None].copy())).argmax())
        state, _, terminated, truncated, _ = env.step(action)
        if step >= args.skip and (step - args.skip) % args.speed == 0:
            pictures.append(Image.fromarray(env.render()))
        if terminated or truncated:
            break
    return pictures + pictures[-1:] * (wanted - len(pictures))
