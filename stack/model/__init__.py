"""Frozen values that the rest of the stack passes around. No input, no output, no clock."""
