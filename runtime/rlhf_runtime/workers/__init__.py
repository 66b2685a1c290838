"""Processes of a job besides the driver: one rank per device, a data host and reward hosts."""
