"""Unquoted words that kubectl and YAML 1.2 read differently are found."""

from __future__ import annotations

import pytest

from rlhf_api.errors import ManifestError
from rlhf_api.reading.manifest import load_jobs
from rlhf_api.reading.yaml_documents import read_documents
from rlhf_api.reading.yaml_scalars import Scalar, kubectl_scalar, plain_scalar

from .yaml_words import ALIKE, DIFFERENT


@pytest.mark.parametrize(("word", "value"), DIFFERENT.items())
def test_words_that_differ_are_noted_with_their_paths(word: str, value: Scalar) -> None:
    assert kubectl_scalar(word) == value != plain_scalar(word)
    documents, _ = read_documents(f"a: [{word}, '{word}', !!str {word}]\n{word}: 1")
    assert documents[0].ambiguous == {("a", 0): word, (word,): word}


@pytest.mark.parametrize("word", ALIKE)
def test_words_that_are_alike_are_not_noted(word: str) -> None:
    documents, _ = read_documents(f"a: [{word}]")
    assert documents[0].ambiguous == {} and kubectl_scalar(word) == plain_scalar(word)


MANIFEST = """
apiVersion: rlhf-operator.dev/v1alpha1
kind: RLHFJob
metadata: {name: x, labels: {y: "1"}}
spec:
  algorithm: {type: GRPO}
  models:
    actor:
      source: {builtin: TinyLlama}
      training: {warmupSteps: 010, learningRate: 1_0e-5}
  data: {train: {builtin: SortDigits}}
  rewards:
    - function: {entrypoint: "m:f"}
  rollout: {samplesPerPrompt: 4}
  schedule: {steps: 2, promptsPerStep: 8}
  env: [{name: A, value: on}]
"""


def test_a_manifest_names_every_such_word_once_with_what_to_write() -> None:
    with pytest.raises(ManifestError) as caught:
        load_jobs(MANIFEST, "job.yaml")
    problems = {".".join(map(str, problem.location)): problem for problem in caught.value.problems}
    assert {name: (problem.line, problem.do) for name, problem in problems.items()} == {
        "metadata.labels.y": (4, 'write "y"'),
        "spec.models.actor.training.warmupSteps": (10, 'write 8 or 10 or "010"'),
        "spec.models.actor.training.learningRate": (10, 'write 0.0001 or "1_0e-5"'),
        "spec.env.0.value": (16, 'write true or "on"'),
    }
    got = problems["spec.models.actor.training.warmupSteps"].got
    assert got == "010, which is 8 for kubectl and 10 in YAML 1.2"
