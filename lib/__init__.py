"""What the rungs share, one idea per file, in folders of which each imports only those before it.

    envs       the game, its wrappers, and what a step tells
    learning   networks, losses, replay buffers, what chooses actions
    training   everything around the updates: flags, events, curves, checkpoints
    parallel   processes and machines that play for a trainer

The files beside these folders are what all of them need: devices, copies to a GPU, random numbers,
what is printed, and the rule for what is only faster. The rungs import from here; nothing in here
imports a rung.
"""
