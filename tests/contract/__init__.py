"""What holds on the Kafka in memory and on the real one alike: each test runs on both."""
