"""Stories that show the stack at work, each on a temporary cluster of its own."""
