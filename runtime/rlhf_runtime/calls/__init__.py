"""Messages between driver and workers: requests, inputs, reports and out-of-memory errors."""
