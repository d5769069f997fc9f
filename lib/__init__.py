"""What every rung of the ladder shares, one idea per file.

The rungs import from here; nothing in here imports a rung.
"""
