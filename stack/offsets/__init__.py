"""The offset manager: the checkpoints of every job and task."""
