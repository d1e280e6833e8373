"""How state survives: RocksDB stores, deltas, restore and snapshots."""
