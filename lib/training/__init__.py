"""A run from its command line to its exit code: flags, events, curves, checkpoints, evaluation."""
