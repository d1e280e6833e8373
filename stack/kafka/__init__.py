"""The only room that imports confluent_kafka. Client errors are translated at this edge."""
