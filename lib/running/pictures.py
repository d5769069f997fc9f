"""Pictures for TensorBoard: what the network sees, and how it values it.

watch/state           the frames of one state, side by side, the newest on the right
watch/q_values        histogram over a batch
watch/gradient_norm   of the last update
watch/best_game       a strip: the end of the first environment's best game so far
"""

from collections import deque
from typing import Any

import numpy as np
import torch
from ignite.engine import Engine, Events
from torch import nn
from torch.nn.utils import get_total_norm

from lib.running.events import PlayEvents
from lib.running.run import Run

EVERY = 5_000  # updates
STATES = 32
STRIP = 8  # frames of a strip,
APART = 4  # and the strip has every so many-th


def log_pictures(engine: Engine, run: Run, saved: dict[str, Any]) -> None:
    """Write the pictures at intervals; memory holds only the last frames of one environment.

    Args:
        engine: makes the updates; its state has the newest frames, see ``lib.running.events``.
        run: gets the pictures.
        saved: as for ``attach_handlers``; only ``net`` and ``buffer`` are used.
    """
    net, buffer, writer = saved["net"], saved["buffer"], run.tensorboard.writer
    frames: deque[np.ndarray] = deque(maxlen=STRIP * APART)
    best = -np.inf

    @engine.on(Events.ITERATION_COMPLETED(every=EVERY))
    def look() -> None:
        step, states = engine.state.iteration, buffer.sample(STATES).states
        with torch.no_grad():
            values = net(states) if isinstance(net, nn.Module) else net(net.compute, states)
        if isinstance(net, nn.Module):
            norm = get_total_norm([p.grad for p in net.parameters() if p.grad is not None])
        else:
            norm = net.gradient_norm
        writer.add_image("watch/state", strip(list(states[0].cpu().numpy())), step)
        writer.add_histogram("watch/q_values", values.float(), step)
        writer.add_scalar("watch/gradient_norm", norm, step)

    @engine.on(PlayEvents.FRAMES_PLAYED)
    def remember() -> None:
        nonlocal best
        for frame, game in engine.state.seen:
            frames.append(frame.copy())  # a view would keep the frames of all games
            if game and game.reward > best:
                best = game.reward
                pictures = [picture[0] for picture in frames][::-APART][::-1]
                writer.add_image("watch/best_game", strip(pictures), engine.state.frames)


def strip(frames: list[np.ndarray]) -> np.ndarray:
    """Frames side by side, uint8, (1, height, width)."""
    return np.concatenate(frames, axis=1)[None]
