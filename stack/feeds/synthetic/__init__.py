"""Synthetic records that fit a schema."""
