"""What the book measured, to be put beside one's own runs; only the changes carry over."""

from typing import NamedTuple


class Measured(NamedTuple):
    """A rung in the chapter: second and third edition, with the change against 01."""

    fps: str
    minutes: str


NOTE = (
    "The book: second edition (i5-6600K, GTX 1080 Ti, solved at 17); third edition (a newer GPU, "
    "solved at 18). From another machine only the changes against 01 carry over."
)
RUNGS = {
    "00_slow_grads": Measured("157 (-1.5 %); 219 (-4 %)", "115 (+10 %); 51.0 (-2 %)"),
    "01_baseline": Measured("159; 229", "105; 52.2"),
    "02_n_envs": Measured("228 (+43 %); 395 (+72 %)", "44 (-58 %); 36.0 (-31 %)"),
    "03_parallel": Measured("402 (+152 %); 290 (+27 %)", "59 (-43 %); 31.2 (-40 %)"),
    "04_new_wrappers_n_env": Measured("330 (+108 %); 448 (+96 %)", "40 (-62 %); 47.4 (-9 %)"),
    "04_new_wrappers_parallel": Measured("409 (+157 %); 325 (+42 %)", "31 (-70 %); 30.0 (-43 %)"),
}
