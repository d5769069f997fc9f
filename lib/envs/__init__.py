"""Games as a network needs them: wrappers, many games at once, and what a step of them tells."""
