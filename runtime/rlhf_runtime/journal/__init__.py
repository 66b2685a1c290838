"""The journal: answers of outside parties, kept for steps that run again.

Judges, services and functions that ask others may answer otherwise the second time. Their answers
are written before they are used. When a step runs again after a restart, they are read, so that
the job's numbers are those of an undisturbed one.

The driver opens an attempt for each incarnation of workers (`folder.py`). Reward hosts read the
answers of earlier attempts, and write their own (`answers.py`).
"""
