"""Networks, losses, what chooses actions, and what keeps experience to learn from."""
