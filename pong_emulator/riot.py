"""The chip with RAM, timer and ports (MOS 6532, "RIOT"); the RAM is a part of the state.

The timer counts down once every 8 or 64 cycles. The program begins and ends a picture when the
timer reaches 0.

Source: MOS Technology, MCS6532 data sheet; the cycle in which a count changes was measured.
"""

from .compiling import compiled
from .state import TIMER, TIMER_SET, TIMER_SHIFT


@compiled
def set_timer(s, g, t, shift, value):
    """Start the timer at ``value``; it counts down once every ``1 << shift`` cycles."""
    s[TIMER, g] = value
    s[TIMER_SHIFT, g] = shift
    s[TIMER_SET, g] = t


@compiled
def timer(s, g, t):
    """Return the timer in cycle ``t``; after 0 it counts every cycle."""
    passed = t - 1 - s[TIMER_SET, g]
    left = s[TIMER, g] - (passed >> s[TIMER_SHIFT, g]) - 1
    if left < 0:
        left = (s[TIMER, g] << s[TIMER_SHIFT, g]) - passed - 1
    return left & 0xFF
