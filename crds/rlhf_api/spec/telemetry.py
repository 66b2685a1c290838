"""Samples of responses, and trackers in addition to metrics.jsonl and the report of every run."""

from __future__ import annotations

from rlhf_api.base import Contract, NonNegativeCount, ObjectName, Text


class WandbSpec(Contract):
    """Weights & Biases."""

    project: Text
    """Project name."""
    entity: Text | None = None
    """User or team. Default: the API key's own."""
    secret_name: ObjectName | None = None
    """Secret with key WANDB_API_KEY, which the driver gets on a cluster."""
    samples: bool = False
    """If true, samples of evaluations are sent as tables, with the texts of prompts and responses.
    Off by default: no text leaves for another service unasked."""


class MlflowSpec(Contract):
    """MLflow."""

    tracking_uri: Text
    """Address of the tracking server, or a folder; for `rlhf run` relative to the manifest's."""
    experiment: Text
    """Experiment name."""
    samples: bool = False
    """If true, samples of evaluations are sent as artifacts, with the texts of prompts and
    responses. Off by default: no text leaves for another service unasked."""


class TelemetrySpec(Contract):
    """Samples and trackers."""

    samples_every_steps: NonNegativeCount = 10
    """Steps between training steps of which some responses are written to the run's folder,
    `samples/`, with prompts and scores; the first step has some, too, and so has every evaluation
    but those within a warm start. A long job writes fewer, at most about 200 files of steps and 200
    of evaluations. 0: no samples at all."""
    tensorboard: bool = True
    """If true, the run's folder gets TensorBoard files, with samples of evaluations."""
    wandb: WandbSpec | None = None
    """Weights & Biases. Default: off."""
    mlflow: MlflowSpec | None = None
    """MLflow. Default: off."""
