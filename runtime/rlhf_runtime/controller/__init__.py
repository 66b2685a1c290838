"""The driver: one loop that runs an algorithm over groups of workers. It holds references only."""
