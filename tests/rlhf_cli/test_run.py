"""What `rlhf run` makes of a manifest that was written for a cluster."""

from __future__ import annotations

from pathlib import Path

from rlhf_api.reading.manifest import load_file
from rlhf_cli.run import ignored_sections

SMALLEST = Path(__file__).parents[1] / "rlhf_api" / "manifests" / "smallest.yaml"


def test_what_only_pods_have_is_named_and_done_without() -> None:
    secret = "{name: KEY, valueFrom: {secretKeyRef: {name: judge, key: api-key}}}"
    (job,) = load_file(SMALLEST, [f"spec.env=[{secret}]", "spec.hub={}"])
    assert ignored_sections(job) == ["hub", "env"]
    (plain,) = load_file(SMALLEST)
    assert ignored_sections(plain) == []
