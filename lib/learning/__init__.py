"""Networks, losses, agents, schedules, replay buffers and rollouts."""
