"""What the book measured, to be put beside one's own figures; only ratios carry over.

Second edition: i5-6600K, GTX 1080 Ti, solved at 17. Third edition: a newer GPU, solved at 18.
"""

from typing import NamedTuple


class Published(NamedTuple):
    """A rung in the chapter; changes are against the baseline, as printed there."""

    title: str
    fps: str
    minutes: str
    fps_third: str
    minutes_third: str


BASELINE = "01_baseline"

RUNGS = {
    "00_slow_grads": Published(
        "Without no_grad", "157 (-1.5 %)", "115 (+10 %)", "219 (-4 %)", "51.0 (-2 %)"
    ),
    "01_baseline": Published("Baseline", "159", "105", "229", "52.2"),
    "02_n_envs": Published(
        "Three environments", "228 (+43 %)", "44 (-58 %)", "395 (+72 %)", "36.0 (-31 %)"
    ),
    "03_parallel": Published(
        "Parallel", "402 (+152 %)", "59 (-43 %)", "290 (+27 %)", "31.2 (-40 %)"
    ),
    "04_new_wrappers_n_env": Published(
        "Tweaked wrappers, three environments",
        "330 (+108 %)",
        "40 (-62 %)",
        "448 (+96 %)",
        "47.4 (-9 %)",
    ),
    "04_new_wrappers_parallel": Published(
        "Tweaked wrappers, parallel", "409 (+157 %)", "31 (-70 %)", "325 (+42 %)", "30.0 (-43 %)"
    ),
}
