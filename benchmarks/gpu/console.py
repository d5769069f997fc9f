"""Time the console of ``emulator`` on a GPU: agent steps per second by the number of games.

    python -m benchmarks.gpu.console --cuda --out results/h200

A step is four emulated frames with the whole preprocessing, its actions drawn there. What CuLE
published is put beside it: up to 155 million emulated frames an hour on one GPU (Dalton et al.,
arXiv:1907.08467), on hardware of 2019.
"""

import argparse
import sys
from time import perf_counter

import torch

from benchmarks import Failed, UserError
from benchmarks.arguments import add_out, positive
from benchmarks.report import join_machine, output_folder, write_table
from benchmarks.timing import chosen_device, now
from emulator import EmulatorError, PongVectorEnv
from lib.run import describe_machine

FRAMES = 4  # emulated frames of an agent step
CULE = 155e6 / 3600  # emulated frames per second
GAMES = (32, 256, 1_024, 4_096, 16_384, 65_536)


def main() -> int:
    """Measure, and write the table."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--cuda", action="store_true", help="play on the GPU, not on the CPU")
    parser.add_argument("--games", type=positive, nargs="+", default=GAMES, help="played at once")
    parser.add_argument("--steps", type=positive, default=300, help="agent steps of every game")
    add_out(parser, "runs/gpu")
    args = parser.parse_args()
    try:
        device = chosen_device(args.cuda)
        out = output_folder(args.out)
        rows = []
        for games in args.games:
            rows.append(measure(device, games, args.steps))
            print("  ".join(rows[-1]), flush=True)
        write_table(
            out / "console",
            "The console: agent steps per second",
            [
                "games",
                "agent steps/s",
                "emulated frames/s",
                "times CuLE",
                "bytes a game",
                "until the first step, s",
            ],
            rows,
            [
                f"Machine: {join_machine(describe_machine(device))}",
                f"{args.steps} steps of random actions, after a tenth of them; 1 frame of 84x84",
                f"CuLE: {CULE:,.0f} emulated frames per second at most (arXiv:1907.08467)",
            ],
        )
    except (UserError, Failed, EmulatorError) as error:
        print(f"console: failed: {error}", file=sys.stderr)
        return 1
    return 0


def measure(device: torch.device, games: int, steps: int) -> list[str]:
    """A row of the table."""
    begin = perf_counter()
    envs = PongVectorEnv(games, seed=0, device=device, stack=1)
    envs.reset()
    random = torch.Generator(device).manual_seed(0)

    def step() -> None:
        actions = torch.randint(6, (games,), device=device, generator=random)
        envs.step(actions if device.type == "cuda" else actions.numpy())

    step()
    first = now(device) - begin
    for _ in range(steps // 10):
        step()
    begin = now(device)
    for _ in range(steps):
        step()
    seconds = now(device) - begin
    envs.close()
    size = envs._state.nbytes // games
    speed = games * steps / seconds
    ratio = FRAMES * speed / CULE
    return [
        f"{games:,}",
        f"{speed:,.0f}",
        f"{FRAMES * speed:,.0f}",
        f"{ratio:.1f}",
        f"{size:,}",
        f"{first:.1f}",
    ]


if __name__ == "__main__":
    sys.exit(main())
