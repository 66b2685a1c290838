"""Trackers for metrics, in addition to metrics.jsonl and the report, which every run writes."""

from __future__ import annotations

from rlhf_api.base import Contract, ObjectName, Text


class WandbSpec(Contract):
    """Weights & Biases."""

    project: Text
    """Project name."""
    entity: Text | None = None
    """User or team. Default: the API key's own."""
    secret_name: ObjectName | None = None
    """Secret with key WANDB_API_KEY, which the driver gets on a cluster."""


class MlflowSpec(Contract):
    """MLflow."""

    tracking_uri: Text
    """Address of the tracking server, or a folder; for `rlhf run` relative to the manifest's."""
    experiment: Text
    """Experiment name."""


class TelemetrySpec(Contract):
    """Trackers."""

    tensorboard: bool = True
    """If true, the run's folder gets TensorBoard files."""
    wandb: WandbSpec | None = None
    """Weights & Biases. Default: off."""
    mlflow: MlflowSpec | None = None
    """MLflow. Default: off."""
