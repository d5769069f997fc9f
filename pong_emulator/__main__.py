"""Print Pong as Python: ``python -m pong_emulator``."""

import os
import sys

from .translated import source

try:
    print(source(), flush=True)
except BrokenPipeError:  # nobody reads any more, as after `| head`
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    sys.exit(141)  # the shell's code for SIGPIPE: 128 + 13
