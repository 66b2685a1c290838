"""Messages between driver and workers: requests, their inputs, reports and memory errors."""
