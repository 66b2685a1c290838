"""The client of a cluster's head: Ray's Jobs API and the driver's report."""
