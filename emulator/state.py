"""The state of a console: one column of numbers for a game, read from top to bottom.

All games together are an array int32 (FIELDS, games). On a CPU the numbers of a game lie side by
side in memory, on a GPU those of a field: both are ``s[FIELD, g]`` to whoever uses them.
"""

from itertools import count

_next = count(128)

RAM = 0  # 128 bytes; the addresses 0x80 to 0xFF

# What is seen. The television draws a picture from these and the log of how they changed.
SEEN = 128  # the first of them
COLUP0, COLUP1, COLUPF, COLUBK = (next(_next) for _ in range(4))  # colours
CTRLPF = next(_next)  # playfield: 1 reflected, 2 score colours, 4 before the players; ball's width
PF0, PF1, PF2 = (next(_next) for _ in range(3))  # the playfield's 20 bits
GRP0, GRP1 = (next(_next) for _ in range(2))  # the players' 8 bits
BALL = next(_next)  # whether it is shown
POSP0, POSP1, POSBL = (next(_next) for _ in range(3))  # pixel of the left edge, 0 to 159
VBLANK = next(_next)  # 2: the beam is off
SEEN_END = next(_next)

# The rest of the television.
HMP0, HMP1, HMBL = SEEN_END, next(_next), next(_next)  # how far an HMOVE moves what, in bits 4 to 7
ENABL, ENABL_OLD, VDELBL = (next(_next) for _ in range(3))  # the ball may be shown a line later
CXP0, CXP1, CXPF = (next(_next) for _ in range(3))  # what the ball has touched
COLLIDED = next(_next)  # until this colour clock collisions have been looked for
CHARGED = next(_next)  # the cycle in which the paddles' capacitors began to charge

# The chip with the timer and the ports (RIOT).
TIMER, TIMER_SHIFT, TIMER_SET = (next(_next) for _ in range(3))  # value, log2 of a count, cycle
SWCHA, SWCHB = (next(_next) for _ in range(2))  # the paddles' buttons; the console's switches
PADDLE_A, PADDLE_B = (next(_next) for _ in range(2))  # resistances, in ohm

# Between two pictures.
CYCLES = next(_next)  # into the line in which the last picture was complete
REGISTER_X = next(_next)  # the one register that the next picture needs
SCORE = next(_next)  # points of player A less those of B
FRAMES = next(_next)  # of this game
STEPPED = next(_next)  # those of them that the agent played
NOOPS_DRAWN = next(_next)  # how many resets this game had since it was seeded

# Logs of pictures: what was seen at the beginning, the number of changes, and the changes, each
# packed into one number (see `tia.record`). An observation is made of two pictures, and where a
# game ends in the middle of a step, of those of the step before, too: hence two banks of two.
LOG = next(_next)  # the log that is written, its first field; 0 for none
BANK = next(_next)  # 0 or 1: where the last observation is
LOGS = next(_next)
LOG_COUNT = SEEN_END - SEEN  # relative to the beginning of a log
LOG_CHANGES = LOG_COUNT + 1
LOG_SIZE = 96
LOG_FIELDS = LOG_CHANGES + LOG_SIZE
FIELDS = LOGS + 4 * LOG_FIELDS
