"""What bounds a rung on this machine, in one sentence for a reader whose run is slow."""

from benchmarks.breakdown.stopwatch import KINDS, PLAYING, UPDATING, WAITING

# What bounds a rung -> the rungs that attack it, in the order of the ladder; else it is overhead.
REMEDIES = {
    UPDATING: ("02_n_envs", "03_parallel", "04_new_wrappers_parallel", "06_compiled_update"),
    PLAYING: ("03_parallel", "04_new_wrappers_n_env", "04_new_wrappers_parallel", "05_vector_env"),
    WAITING: ("04_new_wrappers_parallel", "05_vector_env"),
}
OVERHEAD = ("02_n_envs", "03_parallel", "06_compiled_update")


def by_kind(parts: dict[str, float]) -> dict[str, float]:
    """The parts of an iteration in five kinds."""
    return {kind: sum(parts.get(part, 0.0) for part in members) for kind, members in KINDS.items()}


def verdict(rung: str, parts: dict[str, float]) -> str:
    """What bounds a rung, from the milliseconds per frame of the parts of its trainer."""
    times, total = by_kind(parts), sum(parts.values())
    bound = max(times, key=lambda kind: times[kind])
    largest = max(KINDS[bound], key=lambda part: parts.get(part, 0.0))
    detail = "" if bound == largest else f", most of it {largest}"
    flags = "; --amp, or --cuda where there is a GPU, do" if bound == UPDATING else ""
    remedy = next(
        (f"{name}.py attacks that" for name in REMEDIES.get(bound, OVERHEAD) if name > rung),
        f"no further rung attacks that{flags}",
    )
    share = f"{times[bound] / total:.0%} of {total:.2f} ms per frame{detail}"
    return f"{rung} is bound by {bound} here ({share}): {remedy}."
