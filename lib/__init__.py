"""Code shared by the rungs, one idea per file. Each folder imports only the folders above it.

    envs       the game, its wrappers, and what a step returns
    learning   networks, losses, replay buffers, action selection
    training   everything around the updates: flags, events, curves, checkpoints
    parallel   processes and machines that play for a trainer

The files beside these folders serve all of them. Nothing in lib imports a rung.
"""

import os

# A thread of OpenMP that waits for the others spins this often before it sleeps. By default it
# spins for milliseconds, on a core that another program or the awaited thread needs. Read when
# torch is imported, on Linux; a value from the shell wins.
os.environ.setdefault("GOMP_SPINCOUNT", "1000")
