"""The cluster of docker-compose.yml: what each service of it runs, how it is looked after, and its trial."""
