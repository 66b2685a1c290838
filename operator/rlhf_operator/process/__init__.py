"""The operator's process: watches, queue, workers, leadership, health, logs and metrics."""
