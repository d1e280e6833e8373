"""A ZooKeeper in memory with the face of kazoo: sessions, ephemerals, versions, watches, delays."""
