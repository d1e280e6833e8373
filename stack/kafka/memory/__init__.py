"""A twin of Kafka in memory, at the level of its Python client: what the adapters ask, it answers."""
