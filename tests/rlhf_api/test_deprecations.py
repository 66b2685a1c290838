"""Deprecated fields: still read, named with what to write instead, and rewritten on request."""

from __future__ import annotations

from datetime import date

import pytest

from rlhf_api.deprecations import DEPRECATIONS, deprecations_in
from rlhf_api.errors import ManifestError
from rlhf_api.reading.conversion import convert_text
from rlhf_api.reading.fields import field_at
from rlhf_api.reading.manifest import load_jobs
from rlhf_api.reading.overrides import apply_overrides
from rlhf_api.reading.validation import validate_document
from rlhf_api.spec.job import RLHFJobSpec

from .rule_cases import GOOD

OLD = """\
# A job of last year.
apiVersion: rlhf-operator.dev/v1alpha1
kind: RLHFJob
metadata: {name: sort}
spec:
  algorithm: {type: PPO}
  models: {actor: {source: {path: /m}}}
  data: {train: {path: /d}}
  rewards: [{function: {entrypoint: "a:b"}}]
  schedule: {steps: 10, promptsPerStep: 4}
  ttlSecondsAfterFinished: 60  # an hour is too long
"""
OTHER = """\
apiVersion: v1
kind: ConfigMap
metadata: {name: a}
data: {ttlSecondsAfterFinished: x}
"""


def spec_of(*changes: str) -> RLHFJobSpec:
    job, problems = validate_document(apply_overrides(GOOD, changes))
    assert job is not None, problems
    return job.spec


def test_deprecated_fields_and_their_successors_exist_and_both_are_readable() -> None:
    for entry in DEPRECATIONS:
        for name in (entry.field, entry.instead):
            assert field_at(("spec", name)) is not None
        field = field_at(("spec", entry.field))
        assert field is not None and field.description.startswith(
            f"Deprecated: write {entry.instead}"
        )
        assert entry.until > date(2026, 11, 28)


def test_the_message_says_what_to_write_and_until_when() -> None:
    (entry,) = deprecations_in(spec_of("spec.ttlSecondsAfterFinished=60"))
    assert entry.message == (
        "spec.ttlSecondsAfterFinished is deprecated: write spec.clusterTTLSeconds (`rlhf convert "
        "FILE` does so); v1alpha1 reads it as now at least until 2027-11-30, and later versions "
        "delete the job itself after this time, as Kubernetes' Jobs do"
    )


def test_defaults_that_the_api_server_stores_are_not_deprecated() -> None:
    assert deprecations_in(spec_of("spec.ttlSecondsAfterFinished=0")) == []
    assert deprecations_in(spec_of("spec.clusterTTLSeconds=60")) == []


def test_the_older_name_keeps_its_meaning_and_the_newer_one_wins() -> None:
    assert spec_of("spec.ttlSecondsAfterFinished=60").seconds_cluster_is_kept == 60
    assert spec_of("spec.clusterTTLSeconds=60").seconds_cluster_is_kept == 60
    assert spec_of().seconds_cluster_is_kept == 0


def test_a_converted_manifest_means_the_same_and_keeps_its_comments() -> None:
    text, changes = convert_text(OLD, "job.yaml")
    assert text == OLD.replace("ttlSecondsAfterFinished: 60", "clusterTTLSeconds: 60")
    assert changes == ["sort: spec.ttlSecondsAfterFinished is spec.clusterTTLSeconds"]
    (before,), (after,) = load_jobs(OLD, "job.yaml"), load_jobs(text, "job.yaml")
    assert before.spec.seconds_cluster_is_kept == after.spec.seconds_cluster_is_kept == 60
    assert convert_text(text, "job.yaml") == (text, [])


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("  ttlSecondsAfterFinished: 60", "  clusterTTLSeconds: 60"),
        ('  "ttlSecondsAfterFinished": 60', '  "clusterTTLSeconds": 60'),
        ("  ttlSecondsAfterFinished:\n    60", "  clusterTTLSeconds:\n    60"),
    ],
)
def test_each_style_of_yaml_is_kept(old: str, new: str) -> None:
    text = OLD.replace("  ttlSecondsAfterFinished: 60", old)
    assert convert_text(text, "job.yaml")[0] == OLD.replace("  ttlSecondsAfterFinished: 60", new)


def test_other_objects_of_the_file_stay_as_they_are() -> None:
    text, changes = convert_text(f"{OTHER}---\n{OLD}---\n{OTHER}", "all.yaml")
    assert text.startswith(OTHER) and text.endswith(OTHER) and len(changes) == 1
    assert "clusterTTLSeconds: 60" in text


def test_a_manifest_with_both_names_is_for_its_author_to_decide() -> None:
    with pytest.raises(ManifestError, match="stands beside clusterTTLSeconds: remove one"):
        convert_text(f"{OLD}  clusterTTLSeconds: 60\n", "job.yaml")
