"""Players beside the trainer: one process (03, 04 parallel), or a cluster (09)."""
