"""Games of a trained network: the trial before training ends, and the games after it.

Vector environments play them together; ``play.py`` plays one by one, with pictures.
"""

import math
import statistics
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import chain, zip_longest
from pathlib import Path
from typing import Any

from lib.envs.atari_wrappers import LifeStack, check_env_id, make_atari, wrap_deepmind
from lib.envs.experience import Episode
from lib.envs.preprocessing import Preprocessing
from lib.envs.vector_env import StackedVectorEnv, ale_games, fast_games
from lib.learning.agents import QFunction, sample_actions
from lib.learning.compiled_update import CapturedForward
from lib.learning.dqn_model import DQN, NETWORKS
from lib.printing import plural, print_line
from lib.seeds import ACTIONS, TRIAL, game_seeds, stream
from lib.training.checkpoints import SETTINGS, CheckpointError, read_first
from lib.training.play import PlayEvents
from lib.training.run import Run
from lib.transfer import upload

import gymnasium as gym
import numpy as np
import torch
from gymnasium.spaces import Box, Discrete
from gymnasium.wrappers import TransformAction, TransformObservation
from ignite.engine import Engine
from tqdm import tqdm

EPISODES = 30
TRIAL_NOOP_MAX = 60  # twice as many as in training, so that half of the starts are new
EPSILON = 0.01
SEED = 1_000_000  # of the first game; those of training are larger
STICKY_EPISODES = 16  # 16 games take 14 CPU-seconds in ALE; 64 would take 50
STICKY = 0.25  # as in ALE/Pong-v5


def make_env(preprocessing: Preprocessing, **kwargs: Any) -> gym.Env:
    """Make one environment with the states of training; ``kwargs`` go to ALE."""
    p = preprocessing
    kwargs |= {"obs_type": "grayscale"} if p.vector_env else {}
    atari = make_atari(p.env, noop_max=p.noop_max, skip=p.skip, max_pool=p.max_pool, **kwargs)
    kept = {name: getattr(p, name) for name in ("fire_reset", "resize", "stack")}
    life = p.episodic_life and not p.vector_env
    stacked = wrap_deepmind(atari, episodic_life=life, clip_reward=False, **kept)
    if p.vector_env:
        stacked = LifeStack(stacked.env, p.stack)
    low, high = map(p.transform, (stacked.observation_space.low, stacked.observation_space.high))
    env = TransformObservation(stacked, p.transform, Box(low, high, dtype=np.uint8))
    if (actions := p.actions) is None:
        return env
    return TransformAction(env, lambda action: actions[action], Discrete(len(actions)))


def make_games(
    preprocessing: Preprocessing, seeds: np.ndarray, sticky: float = 0.0, **settings: Any
) -> StackedVectorEnv:
    """Make one game per seed, int64 (n,), played together; they start as ALE's do."""
    make = partial(ale_games, repeat_action_probability=sticky) if sticky else fast_games
    games = make(preprocessing.env, len(seeds), max_pool=preprocessing.max_pool, **settings)
    return StackedVectorEnv(games, preprocessing, seeds)


def play_games(
    games: StackedVectorEnv,
    q_function: QFunction,
    epsilon: float,
    temperature: float = 0.0,
    device: torch.device | str = "cpu",
) -> Iterator[list[tuple[int, Episode]]]:
    """Play every game to its end, all at once.

    ``q_function`` takes states on ``device``. Each game draws its own random actions, so none
    depends on the others, unless ``q_function``'s values depend on the whole batch.

    Yields:
        While each step is played, a list of (number, episode) of the games that ended in the
        previous step. A final list follows the last step.
    """
    randoms = [stream(seed, ACTIONS) for seed in games.seeds.tolist()]
    actions, playing = np.zeros(len(randoms), dtype=np.int64), np.arange(len(randoms))
    ended: list[tuple[int, Episode]] = []
    while len(playing):
        (states,) = upload(torch.device(device), games.states[playing])
        with torch.no_grad():
            values = q_function(states).float().cpu().numpy()
        own = [randoms[i] for i in playing]
        actions[playing] = sample_actions(values, epsilon, temperature, own)
        games.send(actions)
        yield ended
        episodes = games.recv().episodes
        ended = [(i, game) for i, game in enumerate(episodes) if game and i in playing]
        playing = np.setdiff1d(playing, [i for i, _ in ended])
    yield ended


def play_game(env: gym.Env, network: DQN, epsilon: float, seed: int) -> Episode:
    """Play one game of ``make_env`` on the CPU, with actions chosen as in ``play_games``."""
    random = stream(seed, ACTIONS)
    state, info = env.reset(seed=seed)
    steps = 0
    while "episode" not in info:
        with torch.no_grad():
            values = network(torch.from_numpy(state[None])).numpy()
        action = int(sample_actions(values, epsilon, network.temperature, [random])[0])
        state, _, terminated, truncated, info = env.step(action)
        steps += 1
        if (terminated or truncated) and "episode" not in info:  # a life is lost
            state, info = env.reset()
    return Episode(float(info["episode"]["r"]), steps)


def evaluate(q_function: QFunction, run: Run) -> None:
    """After a solved run, play 30 games with epsilon 0.01, then 16 with sticky actions.

    All agents play the same games, with other seeds than in training. TensorBoard gets the
    unclipped rewards.
    """
    if not run.solved:
        return
    if run.signal is not None:
        print_line("no games after training: the run was interrupted")
        return
    most = Preprocessing.noop_max - 2  # ALE begins with up to 29 frames, one of them FIRE
    for tag, title, count, sticky in (
        ("reward", f"games after FIRE and up to {most} no-ops", EPISODES, 0.0),
        ("sticky_reward", f"games with sticky actions ({STICKY:g})", STICKY_EPISODES, STICKY),
    ):
        games = make_games(run.params.preprocessing, SEED + np.arange(count), sticky)
        rewards = [0.0] * count
        layout: dict[str, Any] = {"leave": False, "disable": None, "dynamic_ncols": True}
        with tqdm(total=count, desc=title, miniters=0, **layout) as bar:
            played = play_games(games, q_function, EPSILON, run.params.temperature, run.device)
            for ended in played:
                bar.update(len(ended))  # even by 0, so that its clock goes on
                for number, game in ended:
                    rewards[number] = game.reward
        print_line(f"{title}, epsilon {EPSILON:g}:\n{describe(rewards)}")
        for number, reward in enumerate(rewards, start=1):
            run.tensorboard.writer.add_scalar(f"evaluation/{tag}", reward, number)


@dataclass(frozen=True)
class Trial:
    """The result of a trial: games of the agent that would be saved, until the first loss.

    avg_reward measures an agent that keeps learning; a frozen agent may repeat the same mistake.
    """

    games: int
    rewards: Sequence[float]  # of the games that ended
    goal: float  # --stop-reward
    least: float = 0.0  # a game with fewer points is lost; -inf: only the mean counts

    @property
    def won(self) -> int:
        return sum(reward > self.least for reward in self.rewards)

    @property
    def mean(self) -> float:
        return statistics.mean(self.rewards)

    @property
    def decided(self) -> bool:
        return len(self.rewards) == self.games or min(self.rewards, default=0) < self.least

    @property
    def passed(self) -> bool:
        return self.won == self.games and self.mean >= self.goal


def run_trial(agent: QFunction, engine: Engine, run: Run) -> Trial:
    """Play ``--trial-games`` new games together, until one is lost or a signal arrives.

    The run's seed and frame determine the games, which begin with FIRE and up to 58 no-ops.
    """
    params = run.params
    seeds = game_seeds(params.seed, params.trial_games, TRIAL, engine.state.frames)
    least = -math.inf if getattr(params, "any_game", False) else 0.0  # Pong is won or lost
    trial = Trial(params.trial_games, rewards := [], params.stop_reward, least)
    engine.state.trial = trial
    threads = torch.get_num_threads()
    torch.set_num_threads(1)  # more would only take cores from the games
    # Two halves: one is played while the agent chooses actions for the other.
    parts = np.array_split(seeds, min(2, len(seeds)))
    halves = [make_games(params.preprocessing, part, noop_max=TRIAL_NOOP_MAX) for part in parts]
    with torch.no_grad():
        agent = CapturedForward(agent, halves[0].shape, run.device)
    settings = agent, EPSILON, params.temperature, run.device
    played = (play_games(half, *settings) for half in halves)
    for ended in chain.from_iterable(zip_longest(*played, fillvalue=[])):
        rewards += [game.reward for _, game in ended]
        engine.fire_event(PlayEvents.TRIAL_STEP)
        if run.signal is not None or trial.decided:
            break
    torch.set_num_threads(threads)
    return trial


def describe(rewards: Sequence[float]) -> str:
    """Describe mean and spread of the rewards of games in one line."""
    mean, deviation = statistics.mean(rewards), statistics.pstdev(rewards)
    text = f"{plural(len(rewards), 'game')}, mean {mean:.2f}, standard deviation {deviation:.2f}"
    return f"{text}, {min(rewards):.0f} to {max(rewards):.0f}"


def read_agent(place: str | Path) -> tuple[DQN, Preprocessing]:
    """Load the agent of a checkpoint or a run folder, see ``read_first``."""
    return load_agent(read_first(Path(place))[1])


def load_agent(checkpoint: dict[str, Any]) -> tuple[DQN, Preprocessing]:
    """Return the network of a checkpoint, on the CPU, and its preprocessing.

    Raises:
        CheckpointError: the weights do not fit the network, or its game is not supported.
    """
    settings, weights = checkpoint[SETTINGS], checkpoint.get("net", {})
    try:
        spec = settings["network"]
        earlier = {"vector_env": settings["script"] >= "05"}  # not saved by earlier versions
        preprocessing = Preprocessing(**earlier | settings["preprocessing"])
        check_env_id(preprocessing.env)
        network = NETWORKS[spec["class"]](**spec["arguments"])
        # In 06, 07, 08 and 10, take the averaged or float32 weights alone, without Adam's moments.
        network.load_state_dict(weights.get("ema", weights.get("weights", weights)))
    except (KeyError, TypeError, ValueError, RuntimeError) as error:
        reason = " ".join(str(error).split())[:300]
        if isinstance(error, KeyError):
            reason = f"another version saved its checkpoint: {reason}"
        raise CheckpointError(f"the agent of {settings['script']} cannot play: {reason}") from None
    return network, preprocessing
