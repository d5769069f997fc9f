"""EnvPool plays Pong: a line of flags in, a line with agent steps per second out.

Run by ``python -m benchmarks console`` in the peers' environment; it imports nothing of this
project. A line is a JSON object with ``games``, ``threads`` and ``seconds``.
"""

import json
import sys
from time import perf_counter

import envpool
import numpy as np


def measure(games: int, threads: int, seconds: float) -> float:
    """Agent steps per second of all games together."""
    envs = envpool.make(
        "Pong-v5",
        env_type="gymnasium",
        num_envs=games,
        num_threads=threads,
        seed=0,
        stack_num=1,
        use_inter_area_resize=True,
    )
    envs.reset()
    choices = np.random.default_rng(0).integers(6, size=(64, games))
    envs.step(choices[0])
    begin, steps = perf_counter(), 0
    while steps == 0 or perf_counter() - begin < seconds:
        envs.step(choices[steps % len(choices)])
        steps += 1
    rate = games * steps / (perf_counter() - begin)
    envs.close()
    return rate


print(json.dumps(envpool.__version__), flush=True)
for line in sys.stdin:
    print(json.dumps(measure(**json.loads(line))), flush=True)
