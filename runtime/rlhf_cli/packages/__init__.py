"""Packages of `code.requirements`: resolved once for a run, installed once for a folder of sets.

Used by `user_code`, which puts them on the Python path of a command. pip does the work, with the
settings that it has here. Nothing else in this software calls pip.
"""
