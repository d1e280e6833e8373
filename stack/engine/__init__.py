"""Pure decisions: when to commit, who runs what. No input or output, no clock, no threads."""
