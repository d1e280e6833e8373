"""Feeds: the catalogue, the schema registry, codecs, reader and writer."""
