"""Measurements of the stack that a person can repeat: each module has a function that returns numbers."""
