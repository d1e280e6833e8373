"""The service of a stack: its schema registry over HTTP, and whatever routers are added beside it."""
