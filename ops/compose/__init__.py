"""The cluster of docker-compose.yml: what each service of it runs, how it is looked after, and its trial."""

PROFILES = ("ensemble", "standby", "metrics")
"""What can be added to the cluster."""
