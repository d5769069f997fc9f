"""Code shared by the rungs, one idea per file. Each folder imports only the folders above it.

    envs       the game, its wrappers, and what a step returns
    learning   networks, losses, replay buffers, action selection
    training   everything around the updates: flags, events, curves, checkpoints
    parallel   processes and machines that play for a trainer

The files beside these folders serve all of them: devices, copies to a GPU, random numbers,
printing, and the fallback from optimised to eager code. Nothing in lib imports a rung.
"""
