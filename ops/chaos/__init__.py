"""Chaos: two counting jobs under load, faults by a schedule, and a verifier that trusts nobody."""
