"""How the functions of the console are compiled."""

from collections.abc import Callable
from typing import Any

import numba

# Without `_nrt=False` Numba counts the references to every array that it hands on, which took 87 %
# of the time. `nogil` lets threads play at once. As in C, nobody looks for a division by zero.
compiled: Callable[..., Any] = numba.njit(_nrt=False, nogil=True, error_model="numpy")
