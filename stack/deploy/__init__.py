"""From a folder of code to a job in the jobs feed: inspect, check, pack, store."""
