"""The stream processors that the task engine is measured against: the same counting job on each of them."""
