"""The offset manager: checkpoints of every job and task, and offsets of consumers outside the stack."""
