"""What jobs are tested with: a stack in memory, with the clock in hand and crashes on demand."""

from stack.model.dead import DeadLetter
from stack.testing.clock import Clock
from stack.testing.jobs import JobFailed
from stack.testing.kit import MemoryStack
from stack.testing.points import POINTS

__all__ = ["POINTS", "Clock", "DeadLetter", "JobFailed", "MemoryStack"]
