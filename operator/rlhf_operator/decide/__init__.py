"""What to do about a job, given what was observed. Pure."""
