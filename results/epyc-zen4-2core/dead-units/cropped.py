"""``alive.py`` with the picture that the chapter's 00 to 03 learn from: ``python cropped.py ...``.

The screen in 84 x 110 pixels, of which the rows from 18 to 101 are seen: no score, no walls.
"""

from lib.envs.atari_wrappers import WarpFrame

import alive
import cv2
import numpy as np


def observation(warp: WarpFrame, screen: np.ndarray) -> np.ndarray:
    """uint8 (210, 160, 3) to (84, 84, 1)."""
    return warp.resize(cv2.cvtColor(screen, cv2.COLOR_RGB2GRAY), (84, 110))[18:102, :, np.newaxis]


WarpFrame.observation = observation
if __name__ == "__main__":
    alive.main()
