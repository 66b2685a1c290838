"""Processes of a job besides the driver: one rank per device, one for data, one for rewards."""
