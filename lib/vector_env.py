"""ALE's C++ vector environment: emulation, frame skip and resizing in native threads.

``ale_py.AtariVectorEnv`` plays all games in C++ threads, outside of the interpreter's lock.
Stepping is split in two: ``send`` hands the actions over and returns at once, ``recv`` waits
for the frames. What happens in between costs no playing time.
"""

from collections.abc import Callable, Iterator

import gymnasium as gym
import numpy as np
from ale_py import AtariVectorEnv
from gymnasium.vector import AutoresetMode

from lib.experience import Episode, Transition


def make_vector_env(
    env_id: str, num_envs: int, *, noop_max: int = 30, skip: int = 4, max_pool: bool = True
) -> AtariVectorEnv:
    """The DeepMind preprocessing without stacking and clipping, for several games at once.

    Observations are the newest frames alone, uint8 of (num_envs, 1, 84, 84); whoever wants
    stacks keeps them. A game that ends is followed by the next one in the same step.

    Args:
        env_id: a NoFrameskip game, such as PongNoFrameskip-v4.
        num_envs: games played at once.
        noop_max: begin with up to this many no-ops; FIRE counts as one of them.
        skip: emulated frames per agent step.
        max_pool: the maximum of the last two skipped frames, not the last one alone.
    """
    return AtariVectorEnv(
        gym.spec(env_id).kwargs["game"],
        num_envs,
        stack_num=1,
        frameskip=skip,
        maxpool=max_pool,
        noop_max=noop_max,
        reward_clipping=False,  # episodes are reported unclipped
        autoreset_mode=AutoresetMode.SAME_STEP,
    )


class VectorExperienceSource:
    """Steps a vector environment forever, and lets it play while its transitions are learned.

    Iterating yields lists of one transition per environment, of the step before: when a list
    is handed out, the next actions are with the emulator already.

    Args:
        envs: as ``make_vector_env`` makes them.
        stack: frames of a state.
        agent: maps uint8 states (n, stack, height, width) to actions, int64 (n,).
        seed: environment ``i`` is seeded with ``seed + i``.
    """

    def __init__(
        self,
        envs: AtariVectorEnv,
        stack: int,
        agent: Callable[[np.ndarray], np.ndarray],
        seed: int = 0,
    ) -> None:
        self.envs = envs
        self.stack = stack
        self.agent = agent
        self.seed = seed

    def __iter__(self) -> Iterator[list[Transition]]:
        frames, _ = self.envs.reset(seed=self.seed)
        states = np.repeat(frames, self.stack, axis=1)
        first_frames: list[np.ndarray | None] = list(frames)
        rewards_so_far = np.zeros(len(frames))
        steps_so_far = np.zeros(len(frames), dtype=np.int64)
        transitions: list[Transition] = []
        while True:
            actions = self.agent(states)
            self.envs.send(actions)
            yield transitions
            frames, rewards, terminated, truncated, info = self.envs.recv()
            rewards_so_far += rewards
            steps_so_far += 1
            states = np.concatenate([states[:, 1:], frames], axis=1)
            transitions = []
            for i, ended in enumerate(terminated | truncated):
                # Of a game that ended, ``frames`` has the first frame of the next one.
                frame = info["final_obs"][i] if ended else frames[i]
                episode = Episode(float(rewards_so_far[i]), int(steps_so_far[i])) if ended else None
                transitions.append(
                    Transition(
                        env=i,
                        action=int(actions[i]),
                        reward=float(np.sign(rewards[i])),
                        terminated=bool(terminated[i]),
                        frame=frame,
                        first_frame=first_frames[i],
                        episode=episode,
                    )
                )
                first_frames[i] = frames[i] if ended else None
                if ended:
                    states[i] = frames[i]
                    rewards_so_far[i] = steps_so_far[i] = 0
