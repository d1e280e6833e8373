"""Chaos: jobs under load, our own or a user's, faults by a schedule, and judges that trust nobody."""
