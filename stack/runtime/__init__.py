"""Carries decisions out: the container loop, and the runner on Spark."""
