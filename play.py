"""Watch a trained agent play whole games, and print each score.

    python play.py
    python play.py runs/07_speedrun-pong-seed0-2026-11-21T10-00-00
    python play.py RUN_DIR --episodes 1 --video pong.mp4
    python play.py RUN_DIR --render

RUN_DIR is a checkpoint or the folder of a run. From a folder, play.py takes
the solved checkpoint, otherwise the best one, otherwise the latest. Without
RUN_DIR the shipped agent plays, see weights/README.md. Games begin after
no-ops, as DeepMind's do. An agent trained with other starts first plays
the same number of games with its own.

    python play.py RUN_DIR --export agent.pt

writes only the weights and the preprocessing, without the optimizer.
"""

import argparse
import ctypes
import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from lib.learning.dqn_model import DQN
from lib.training import checkpoints
from lib.training.evaluation import SEED, STICKY, describe, load_agent, make_env, play_game
from lib.training.flags import FlagParser, number

import gymnasium as gym
import numpy as np
import torch
from gymnasium.wrappers import TransformReward
from imageio_ffmpeg import write_frames
from tqdm import tqdm

SHIPPED = Path(__file__).parent / "weights" / "pong.pt"
# For each kind of video: agent steps per picture, its speed where a step has 4 emulated frames, and
# ffmpeg's settings. A GIF is small: 4 times as fast as the Atari, with the game's own palette.
COLOURS = "split[pictures][same];[same]palettegen=stats_mode=single[palette];"
COLOURS += "[pictures][palette]paletteuse=new=1:dither=none"
GIF = {"fps": 30, "codec": "gif", "pix_fmt_out": "pal8", "quality": None, "macro_block_size": 1}
VIDEOS: dict[str, tuple[int, float, dict[str, Any]]] = {
    ".mp4": (1, 1.0, {"fps": 15, "macro_block_size": 2}),
    ".gif": (2, 4.0, GIF | {"output_params": ["-vf", COLOURS]}),
}


def parse() -> argparse.Namespace:
    """Read the command line."""
    parser = FlagParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    place = "run folder or checkpoint (default: the shipped agent)"
    parser.add_argument(
        "run_dir", type=Path, metavar="RUN_DIR", nargs="?", default=SHIPPED, help=place
    )
    for flag, kind, default, what in (
        ("--episodes", number(int, 1), 10, "games to play (default: 10)"),
        ("--epsilon", number(float, 0, 1), 0.01, "probability of a random action (default: 0.01)"),
        ("--seed", number(int, 0, 2_000_000_000), SEED, "seed of the first game"),
        ("--video", Path, None, "film the first game, as .mp4 or .gif"),
        ("--export", Path, None, "write the agent to a small file, and exit"),
    ):
        name = "FILE" if kind is Path else flag[2:].upper()
        parser.add_argument(flag, type=kind, metavar=name, default=default, help=what)
    parser.add_argument("--render", action="store_true", help="show the games in a window")
    text = f"repeat actions at random (probability {STICKY}), as ALE/Pong-v5 does"
    parser.add_argument("--sticky", action="store_true", help=text)
    args = parser.parse_args()
    if args.video and args.video.suffix.lower() not in VIDEOS:
        parser.error(f"--video: {args.video} ends in neither {' nor '.join(VIDEOS)}")
    for flag, file in (("--video", args.video), ("--export", args.export)):
        if file and not os.access(file.absolute().parent, os.W_OK | os.X_OK):
            parser.error(f"{flag}: {file.parent} is not a writable folder")
        if file and file.is_dir():
            parser.error(f"{flag}: {file} is a folder")
    if args.video and args.render:
        parser.error("--render: --video cannot show the games at the same time")
    if args.render and sys.platform == "linux" and not has_display():
        display = os.environ.get("DISPLAY", "not set")
        parser.error(f"--render: no display answers (DISPLAY is {display})")
    try:
        args.checkpoint, args.contents, args.notice = checkpoints.read_first(args.run_dir)
        args.network, args.preprocessing = load_agent(args.contents)
    except checkpoints.CheckpointError as error:
        if listed := checkpoints.list_runs(args.run_dir):
            parser.exit(2, f"{parser.prog}: error: {listed}")
        parser.error(str(error))
    return args


def has_display() -> bool:
    """Return whether an X server answers; without one, ALE would play unseen."""
    try:
        open_display = ctypes.CDLL("libX11.so.6").XOpenDisplay
    except OSError:
        return False  # without this library ALE opens no window
    open_display.restype = ctypes.c_void_p
    return open_display(None) is not None


class Film(gym.Wrapper):
    """Write the pictures of ``env``, which renders ``rgb_array``, to a video file."""

    def __init__(self, env: gym.Env, file: Path) -> None:
        super().__init__(env)
        self.every, _, settings = VIDEOS[file.suffix.lower()]
        height, width = (env.unwrapped.observation_space.shape or ())[:2]
        self.writer = write_frames(file, (width, height), ffmpeg_log_level="error", **settings)
        self.writer.send(None)  # start ffmpeg
        self.steps = 0

    def step(self, action: Any) -> tuple[Any, Any, bool, bool, dict[str, Any]]:
        step = self.env.step(action)
        if self.steps % self.every == 0:
            self.writer.send(np.ascontiguousarray(self.env.render()))
        self.steps += 1
        return step


def export(checkpoint: dict[str, Any], network: DQN, file: Path) -> None:
    """Write the parts of a checkpoint that ``load_agent`` needs."""
    settings = checkpoint[checkpoints.SETTINGS]
    settings = {name: settings[name] for name in ("script", "preprocessing", "network")}
    progress = {name: checkpoint["progress"][name] for name in ("frames", "avg_reward")}
    agent = {checkpoints.SETTINGS: settings, "progress": progress, "net": network.state_dict()}
    checkpoints.write_checkpoint(file, agent)
    print(f"{file}: {file.stat().st_size / 1e6:.1f} MB")


def main() -> None:
    """Play, or export."""
    args = parse()
    if args.notice:
        print(args.notice)
    if args.export:
        export(args.contents, args.network, args.export)
        return
    torch.set_num_threads(1)  # one state at a time: more threads would wait for each other
    script = args.contents[checkpoints.SETTINGS]["script"]
    print(f"{args.checkpoint}: {script} after {args.contents['progress']['frames']:,} frames")
    film = args.video
    for kind, preprocessing in args.preprocessing.starts.items():
        print(f"games {kind}{', sticky actions' * args.sticky}:")
        # One bar for all games, because deleting a bar can swallow a Ctrl-C.
        layout = {"bar_format": "{desc}{n:5.0f}\r", "miniters": 0, "leave": False}
        score = tqdm(disable=None, **layout)  # live, on a terminal

        def show(reward: Any, add: Callable[[Any], Any] = score.update) -> Any:
            add(reward)
            return reward

        mode = "human" if args.render else "rgb_array"
        ale = {"render_mode": mode, "repeat_action_probability": STICKY * args.sticky}
        env = TransformReward(make_env(preprocessing, **ale), show)
        rewards: list[float] = []
        try:
            for number in range(args.episodes):
                name = f"game {number + 1:3}  score "
                score.set_description_str(name, refresh=False)
                score.reset()
                filmed, film = Film(env, film) if film else None, None  # the first game
                game = play_game(filmed or env, args.network, args.epsilon, args.seed + number)
                rewards.append(game.reward)
                score.clear()
                print(f"{name}{game.reward:5.0f}  steps {game.steps:5,}", flush=True)
                if filmed:
                    filmed.writer.close()  # completes the file
                    speed = VIDEOS[args.video.suffix.lower()][1] * preprocessing.skip / 4
                    shown = f"{args.video} shows this game at {speed:g} times the Atari's speed"
                    print(shown, flush=True)
        finally:  # after Ctrl-C, too
            score.close()
            if rewards:
                print(describe(rewards), flush=True)
        env.close()


if __name__ == "__main__":
    try:
        main()
    except KeyboardInterrupt:
        sys.exit(130)  # the shell's convention: 128 + signal number
    except BrokenPipeError:  # the reader of the pipe has gone
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        sys.exit(141)
    except OSError as error:  # the disk is full; ffmpeg's error has several lines
        reason, _, _ = str(error).partition("\n")
        sys.exit(f"play.py: failed: {reason}")
