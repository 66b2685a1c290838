"""The head of a job's cluster: Ray's Jobs API and the driver's report."""
