"""The step of an algorithm: its roles, columns, operations and losses, and what a step calls."""
