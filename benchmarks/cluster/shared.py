"""What the parts of this benchmark share."""

import json
import runpy
from collections.abc import Callable
from pathlib import Path
from typing import Any

from benchmarks.report import join_machine
from benchmarks.runner import find_rungs

RUNG = "09_many_machines"


def target(what: str, wanted: str, measured: str, reached: bool) -> list[str]:
    """A line of the table of targets."""
    return [what, wanted, measured, "yes" if reached else "no"]


def measured(run_dir: Path, name: str, measure: Callable[[], dict[str, Any]]) -> dict[str, Any]:
    """What was measured under this name, now or before an interruption."""
    file = run_dir / "measured.json"
    known = json.loads(file.read_text(encoding="utf-8")) if file.exists() else {}
    if name in known:
        print(f"{name}: measured already, see {file}")
    else:
        known[name] = measure() | {"machine": machine_note()}
        part = file.with_suffix(".part")
        part.write_text(json.dumps(known, indent=1) + "\n", encoding="utf-8")
        part.replace(file)
    return known[name]


def real_players(count: int) -> tuple[Any, Any, Any]:
    """The rung's settings, its network, and what makes its players.

    That is given an address, and maybe what changes their class.
    """
    from lib.cluster import Players
    from lib.dqn_model import DQN

    rung = runpy.run_path(str(find_rungs()[RUNG]), run_name="many_machines")
    hp = rung["Options"](players=count)
    net = DQN((hp.stack, 84, 84), hp.make_envs(1, 0).n_actions)

    def players_on(address: str, change: Callable[[type], type] = lambda same: same) -> Players:
        return Players(change(rung["Player"]), count, (hp, 0), address, hp.player_timeout)

    return hp, net, players_on


def machine_note() -> str:
    """Where it is measured."""
    import torch

    from lib.run import describe_machine

    return f"Machine: {join_machine(describe_machine(torch.device('cpu')))}"
