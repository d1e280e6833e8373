"""The whole stack in memory, driven by a seed: its real code on twins, with faults at every step."""
