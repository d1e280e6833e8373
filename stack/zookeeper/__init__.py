"""The only room that imports kazoo. Client errors are translated at this edge."""
