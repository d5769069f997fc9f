"""Environments: wrappers, vector environments, and the transitions that they yield."""
