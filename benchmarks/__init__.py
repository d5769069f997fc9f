"""Runs rungs and techniques, and writes tables and figures: ``python -m benchmarks --help``."""


class UserError(Exception):
    """Something the user can put right; the message says what, in one line."""
