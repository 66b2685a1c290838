"""Advice for a job that does not fit.

changes.py  changes of a manifest and of its devices
advice.py   the changes with which the job fits; each was tried
"""
