"""What people write jobs with: Job, Feed, the context and the stores."""
