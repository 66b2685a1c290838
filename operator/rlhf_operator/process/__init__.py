"""The running process: events, queue, workers, leadership, health, logs and metrics."""
