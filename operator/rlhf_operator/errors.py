"""Errors that end the operator's process."""


class BadConfig(Exception):
    """The settings cannot be used."""
