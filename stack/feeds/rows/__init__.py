"""Rows as people and files give them, as values of a schema, and back."""
