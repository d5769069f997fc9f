"""What the rungs share, one idea per file, in folders of which each imports only those before it.

    games      the game, its wrappers, and what a step tells
    learning   networks, losses, replay buffers, what chooses actions
    running    everything around the updates: flags, events, curves, checkpoints
    players    processes and machines that play for a trainer

The files beside these folders are what all of them need: devices, copies to a GPU, how a state is
made. The rungs import from here; nothing in here imports a rung.
"""
