"""Watch a trained agent: it plays whole games, and prints each score.

    python play.py runs/07_speedrun-pong-seed0-2026-11-21T10-00-00
    python play.py RUN_DIR --episodes 1 --video pong.mp4
    python play.py RUN_DIR --render

RUN_DIR is a checkpoint, or the folder of a run. From a folder, play.py takes the solved checkpoint,
else the best one, else the latest. The environment is the one of the evaluation: DeepMind's, with
no-op starts.
"""

import argparse
import os
import sys
import tempfile
from pathlib import Path
from typing import Any

import gymnasium as gym
import torch
from gymnasium.wrappers import RecordVideo
from PIL import Image

from lib.running.checkpoints import (
    KINDS,
    SETTINGS,
    CheckpointError,
    find_checkpoint,
    read_checkpoint,
)
from lib.running.evaluation import SEED, describe, load_agent, make_env, play_games
from lib.running.flags import OneLineParser

FPS = 15  # of a video: one frame per agent step is the Atari's own speed
VIDEOS = (".mp4", ".gif")


def parse() -> argparse.Namespace:
    """Read the command line; a bad value ends the program with one line and exit code 2."""
    parser = OneLineParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("run_dir", type=Path, metavar="RUN_DIR", help="run folder or checkpoint")
    parser.add_argument("--episodes", type=int, default=10, help="games to play (default: 10)")
    parser.add_argument("--epsilon", type=float, default=0.01, help="of the agent (default: 0.01)")
    parser.add_argument("--seed", type=int, default=SEED, help="seed of the first game")
    parser.add_argument("--video", type=Path, metavar="FILE", help="record them, as .mp4 or .gif")
    parser.add_argument("--render", action="store_true", help="show the games in a window")
    args = parser.parse_args()
    if args.episodes < 1:
        parser.error(f"--episodes: {args.episodes} is less than 1")
    if not 0 <= args.epsilon <= 1:
        parser.error(f"--epsilon: {args.epsilon} is outside 0 to 1")
    if args.video and args.video.suffix not in VIDEOS:
        parser.error(f"--video: {args.video} ends in neither {' nor '.join(VIDEOS)}")
    if args.video and not args.video.absolute().parent.is_dir():
        parser.error(f"--video: {args.video.parent} is not a folder")
    if args.video and args.render:
        parser.error("--render: --video cannot show the games at the same time")
    if args.render and sys.platform == "linux":
        if not (os.environ.get("DISPLAY") or os.environ.get("WAYLAND_DISPLAY")):
            parser.error("--render: there is no display")
    try:
        args.checkpoint = find_checkpoint(args.run_dir, *KINDS)
        args.contents = read_checkpoint(args.checkpoint)
        args.network, args.recipe = load_agent(args.contents)
    except CheckpointError as error:
        parser.error(str(error))
    return args


class RecordGif(gym.Wrapper):
    """Writes all games into a GIF when the environment is closed."""

    def __init__(self, env: gym.Env, file: Path) -> None:
        super().__init__(env)
        self.file = file
        self.pictures: list[Image.Image] = []

    def step(self, action: Any) -> tuple[Any, Any, bool, bool, dict[str, Any]]:
        """Step the environment, and keep the picture."""
        step = self.env.step(action)
        self.pictures.append(Image.fromarray(self.env.render()).quantize(16))
        return step

    def close(self) -> None:
        """Write the file."""
        first, *rest = self.pictures
        first.save(self.file, save_all=True, append_images=rest, duration=1000 // FPS, loop=0)
        super().close()


def record(env: gym.Env, file: Path, folder: str) -> gym.Env:
    """The environment with a recorder; an MP4 is first written to the folder."""
    if file.suffix == ".gif":
        return RecordGif(env, file)
    return RecordVideo(
        env, folder, name_prefix="game", video_length=10**9, fps=FPS, disable_logger=True
    )


def main() -> None:
    """Play."""
    args = parse()
    mode = "human" if args.render else "rgb_array" if args.video else None
    env = make_env(args.recipe, render_mode=mode)
    frames = args.contents["progress"]["frames"]
    print(f"{args.checkpoint}: {args.contents[SETTINGS]['script']} after {frames:,} frames")
    with tempfile.TemporaryDirectory() as folder:
        if args.video:
            env = record(env, args.video, folder)
        rewards = []
        games = play_games(env, torch.no_grad()(args.network), args.epsilon, seed=args.seed)
        for number, game in zip(range(1, args.episodes + 1), games, strict=False):
            rewards.append(game.reward)
            print(f"game {number:3}  score {game.reward:5.0f}  steps {game.steps:5,}", flush=True)
        env.close()
        if args.video and args.video.suffix == ".mp4":
            (made,) = Path(folder).glob("*.mp4")
            args.video.write_bytes(made.read_bytes())
    print(describe(rewards))


if __name__ == "__main__":
    main()
