"""The embedded cluster: a real Kafka, a real ZooKeeper and our HTTP service under one supervisor."""
