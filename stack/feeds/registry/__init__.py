"""The schema registry: subjects, versions, compatibility."""
