"""Code shared by the rungs, one idea per file. Nothing in lib imports a rung.

The folders are envs, learning, training and parallel. Each imports only the folders before it, and
the files directly in lib.
"""

import os

# A waiting OpenMP thread polls this many times before it sleeps. By default it polls for
# milliseconds, on a core that another program or the awaited thread needs. Linux's OpenMP reads
# this when torch is imported; a value from the shell wins.
os.environ.setdefault("GOMP_SPINCOUNT", "1000")
