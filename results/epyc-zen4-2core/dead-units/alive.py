"""Who is alive: ``python alive.py RUNG UPDATES [FLAGS]`` prints what alive.csv has.

The columns: rung, seed, epsilon of Adam, updates, how many of the 64 units of the last convolution
are more than 0 somewhere in 256 states, the spread of the values over these states (standard
deviation, mean of the actions), and the largest gradient in the convolutions.
"""

import copy
import importlib
import sys
from pathlib import Path
from typing import Any

import torch
from ignite.engine import Engine, Events

sys.path.insert(0, str(Path(__file__).parents[3]))
from lib.learning.schedules import Schedule
from lib.training.launch import launch
from lib.training.options import ReplayOptions
from lib.training.run import Run


def main() -> None:
    """Run a rung that looks at itself every 500 updates, and goes on as if it did not."""
    script, updates, *flags = sys.argv[1:]
    module = importlib.import_module(script)
    attach_handlers = module.attach_handlers

    def attach(engine: Engine, run: Run, epsilon: Schedule, saved: dict[str, Any]) -> None:
        attach_handlers(engine, run, epsilon, saved)
        net, buffer, states = saved["net"], saved["buffer"], []

        @engine.on(Events.ITERATION_COMPLETED(every=500))
        @torch.no_grad()
        def look() -> None:
            if not states:  # a copy of the buffer draws them: the run goes on as without
                states.append(copy.deepcopy(buffer).sample(256).states.clone())
            alive = (net.conv(net.pixels(states[0])).view(256, 64, -1).amax((0, 2)) > 0).sum()
            spread = net(states[0]).std(0).mean()
            gradient = max(weight.grad.abs().max() for weight in net.conv.parameters())
            told = run.params.seed, run.params.adam_epsilon, engine.state.iteration, alive.item()
            print("alive", script, *told, f"{spread:.1e}", f"{gradient:.1e}", sep=",", flush=True)
            if engine.state.iteration >= int(updates):
                engine.terminate()

    module.attach_handlers = attach
    sys.argv = [f"{script}.py", "--threads", "1", "--checkpoint-every", "0", *flags]
    launch(module.train, getattr(module, "Options", ReplayOptions), "")


if __name__ == "__main__":  # the player of 03 imports this file, too
    main()
