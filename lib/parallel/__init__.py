"""Players outside of the trainer: a process beside it (03, 04), and players on a cluster (09)."""
