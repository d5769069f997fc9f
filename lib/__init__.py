"""Code shared by the rungs, one idea per file. Nothing in lib imports a rung.

The folders are envs, learning, training and parallel. Each imports only those before it, and the
files beside them, which serve all four.
"""

import os

# A thread of OpenMP that waits for the others spins this often before it sleeps. By default it
# spins for milliseconds, on a core that another program or the awaited thread needs. Read when
# torch is imported, on Linux; a value from the shell wins.
os.environ.setdefault("GOMP_SPINCOUNT", "1000")
