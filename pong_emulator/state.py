"""The state of a game: one column of numbers, read from top to bottom.

All games are an array ``s``, int32 (FIELDS, games), in which the numbers of a game are neighbours
in memory. Clocks are colour clocks of the television, three to a cycle of the processor. Both count
from the line in which the last picture was completed.
"""

from itertools import count

RAM = 0  # 128 bytes, at the addresses 0x80 to 0xFF

_fields = count(128)  # one number each

# The visible registers. A picture is drawn from these and the log of their changes.
COLUP0 = next(_fields)  # colour of player 0, and of the left score
COLUP1 = next(_fields)  # colour of player 1, and of the right score
COLUPF = next(_fields)  # colour of playfield and ball
COLUBK = next(_fields)  # colour of the background
CTRLPF = next(_fields)  # 1: playfield reflected; 2: score; 4: in front; 16, 32: ball's width
PF0 = next(_fields)  # playfield, its first 4 bits
PF1 = next(_fields)  # the next 8
PF2 = next(_fields)  # the last 8
GRP0 = next(_fields)  # player 0, 8 bits
GRP1 = next(_fields)  # player 1, 8 bits
BALL = next(_fields)  # not 0: the ball is shown
POSP0 = next(_fields)  # left edge of player 0, in pixels from 0 to 159
POSP1 = next(_fields)  # left edge of player 1
POSBL = next(_fields)  # left edge of the ball
VBLANK = next(_fields)  # 2: the beam is off
SEEN, SEEN_END = COLUP0, VBLANK + 1

# The rest of the television.
HMP0 = next(_fields)  # how far an HMOVE moves player 0, in bits 4 to 7
HMP1 = next(_fields)  # player 1
HMBL = next(_fields)  # the ball
ENABL = next(_fields)  # 2: the ball was enabled
ENABL_OLD = next(_fields)  # ENABL at the last write of GRP1
VDELBL = next(_fields)  # 1: ENABL_OLD shows the ball
CXP0 = next(_fields)  # 0x40: the ball has touched player 0
CXP1 = next(_fields)  # 0x40: player 1
CXPF = next(_fields)  # 0x80: the playfield
COLLIDED = next(_fields)  # collisions have been found up to this clock
CHARGED = next(_fields)  # the cycle in which paddles' capacitors began to charge; -1: discharged

# The chip with the timer and the ports (RIOT).
TIMER = next(_fields)  # the value that was set
TIMER_SHIFT = next(_fields)  # log2 of the cycles of a count
TIMER_SET = next(_fields)  # the cycle in which it was set
SWCHA = next(_fields)  # the paddles' buttons, a bit each, 0 when pressed
SWCHB = next(_fields)  # the switches RESET, SELECT, difficulty
PADDLE_A = next(_fields)  # resistance of the agent's paddle, in ohm
PADDLE_B = next(_fields)  # of the other one

# Between two pictures.
CYCLES = next(_fields)  # into the line in which the last picture was complete
REGISTER_X = next(_fields)  # the one register that the next picture needs
SCORE = next(_fields)  # points of player A less those of B
EMULATED_FRAMES = next(_fields)  # of this game
PLAYED_FRAMES = next(_fields)  # the emulated frames that the agent played
NOOPS_DRAWN = next(_fields)  # resets of this game since it was seeded

# Logs of pictures. An observation is made of two pictures. If a game ends in the last emulated
# frame of a step, it also needs those of the previous step: hence two banks of two logs.
LOG = next(_fields)  # first field of the log being written; 0: none
BANK = next(_fields)  # 0 or 1: the bank of the last observation
LOGS = next(_fields)  # the first of four

# A log: the visible registers at the beginning, and their changes.
LOG_COUNT = SEEN_END - SEEN  # the number of changes
LOG_CHANGES = LOG_COUNT + 1  # the changes, each packed into one number (see `tia.record`)
LOG_SIZE = 96  # changes kept
LOG_FIELDS = LOG_CHANGES + LOG_SIZE

FIELDS = LOGS + 4 * LOG_FIELDS
