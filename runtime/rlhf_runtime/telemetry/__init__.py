"""Telemetry of a run: records, the run's folder, trackers, progress, summary and report.

Nothing here imports torch, ray or an engine. The controller creates records; all else reads them.
"""
