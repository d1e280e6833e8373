"""Where records lie."""

Place = tuple[str, int]
"""A topic and the number of a partition."""
