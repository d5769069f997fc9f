"""What bounds a rung on this machine, in one sentence for a reader whose run is slow."""

from collections.abc import Sequence

from benchmarks.breakdown.stopwatch import ORDER, WAITING

PLAYING = ("environment", "wrappers", "action selection")
UPDATING = ("sample", "forward", "backward", "optimizer")

# What bounds a rung -> the rungs that attack it, in the order of the ladder, and how.
REMEDIES: dict[str, list[tuple[str, str]]] = {
    "updating": [
        ("02_n_envs", "makes one larger update for the frames of several environments"),
        ("03_parallel", "plays in a process of its own while this one updates"),
        ("04_new_wrappers_parallel", "plays in a process of its own, half the pixels per update"),
        (
            "06_compiled_update",
            "updates in one compiled function, in bfloat16 where that is faster",
        ),
    ],
    "playing": [
        ("03_parallel", "plays in a process of its own"),
        ("04_new_wrappers_n_env", "makes preprocessing cheaper"),
        ("04_new_wrappers_parallel", "makes preprocessing cheaper, in a process of its own"),
        ("05_vector_env", "plays in C++ threads, beside the update"),
    ],
    WAITING: [
        ("04_new_wrappers_parallel", "makes the player's preprocessing cheaper"),
        ("05_vector_env", "plays several games in C++ threads"),
    ],
    "overhead": [
        ("02_n_envs", "shares it among the frames of several environments"),
        ("03_parallel", "shares it among the frames of a larger update"),
        ("06_compiled_update", "updates in one compiled function"),
    ],
}


def verdict(rung: str, parts: dict[str, float]) -> str:
    """One sentence.

    Args:
        rung: its name.
        parts: milliseconds per frame of the parts of its trainer.
    """
    total = sum(parts.values())
    shares = {
        bound: sum(parts.get(part, 0.0) for part in _members(bound)) / total for bound in REMEDIES
    }
    bound = max(shares, key=lambda kind: shares[kind])
    largest = max(_members(bound), key=lambda part: parts.get(part, 0.0))
    detail = "" if bound == WAITING else f", most of it {largest}"
    flags = "; --amp, or --cuda where there is a GPU, do" if bound == "updating" else ""
    remedy = next(
        (f"{name}.py {how}" for name, how in REMEDIES[bound] if name > rung),
        f"no further rung attacks that{flags}",
    )
    return (
        f"{rung} is bound by {bound} here "
        f"({shares[bound]:.0%} of {total:.2f} ms per frame{detail}): {remedy}."
    )


def _members(bound: str) -> Sequence[str]:
    members = {"playing": PLAYING, "updating": UPDATING, WAITING: (WAITING,)}
    overhead = [part for part in ORDER if part not in (*PLAYING, *UPDATING, WAITING)]
    return members.get(bound, overhead)
