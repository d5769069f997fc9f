"""An environment that can be resumed in the middle of a game."""

from typing import Any

import gymnasium as gym

RESET = -1  # recorded as an action: a reset within a game, after a lost life


class ResumableEnv(gym.Wrapper):
    """Gets back to the middle of a game by playing it again from its beginning.

    The state of a game is spread over the emulator and all wrappers. But it follows from the random
    state at the beginning of the game and the actions since then. These are a few numbers, and
    nobody has to look into emulator and wrappers. The game must not be random in other ways: sticky
    actions, for example, cannot be resumed.

    A game begins with the reset after a step that reported ``episode``
    (``gymnasium.wrappers.RecordEpisodeStatistics``), or with a seed.
    """

    def __init__(self, env: gym.Env) -> None:
        super().__init__(env)
        self._seed: int | None = None
        self._random: dict[str, Any] | None = None  # state of the generator, without a seed
        self._actions: list[int] = []
        self._game_over = True

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Any, dict[str, Any]]:
        """Begin a game, or continue it after a lost life."""
        if self._game_over or seed is not None:
            self._seed, self._actions, self._game_over = seed, [], False
            self._random = None if seed is not None else self._generator().state
        else:
            self._actions.append(RESET)
        return self.env.reset(seed=seed, options=options)

    def step(self, action: Any) -> tuple[Any, Any, bool, bool, dict[str, Any]]:
        self._actions.append(int(action))
        step = self.env.step(action)
        self._game_over = "episode" in step[-1]
        return step

    def state_dict(self) -> dict[str, Any]:
        """The beginning of the current game, and its actions so far."""
        return {"seed": self._seed, "random": self._random, "actions": list(self._actions)}

    def play_again(self, state: dict[str, Any]) -> Any:
        """Play the game of ``state_dict`` again, in an environment that was not used yet.

        Returns:
            The newest observation.
        """
        if state["random"]:
            self.unwrapped.reset(seed=0)  # ALE begins later games otherwise than its first one
            self._generator().state = state["random"]
        observation, _ = self.env.reset(seed=state["seed"])
        for action in state["actions"]:
            observation = self.env.reset()[0] if action == RESET else self.env.step(action)[0]
        self._seed, self._random = state["seed"], state["random"]
        self._actions, self._game_over = list(state["actions"]), False
        return observation

    def _generator(self) -> Any:
        return self.unwrapped.np_random.bit_generator
