"""Objects that the operator makes for a job. Pure."""
