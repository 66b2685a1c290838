"""Every kind of mistake in a manifest: where it is reported, and in which words."""

from __future__ import annotations

from dataclasses import dataclass

import pytest

from rlhf_api.errors import ManifestError
from rlhf_api.reading.manifest import load_jobs

LINES = """\
apiVersion: rlhf-operator.dev/v1alpha1
kind: RLHFJob
metadata:
  name: sort-grpo
spec:
  algorithm:
    type: GRPO
  models:
    actor:
      source: {builtin: TinyLlama}
  data:
    train: {builtin: SortDigits}
  rewards:
    - function: {entrypoint: "rlhf_runtime.rewards.exact_match:score"}
  schedule:
    steps: 150
    promptsPerStep: 64
  rollout:
    samplesPerPrompt: 8
""".splitlines()
"""A good manifest. Each case replaces one of its lines, counted from 1, or appends line 20."""


@dataclass(frozen=True)
class Case:
    replaced: int
    by: str
    path: str
    line: int
    says: tuple[str, ...]


CASES = {
    # what the document is
    "another kind": Case(2, "kind: RayJob", "kind", 2, ("RayJob", "RLHFJob", "file of their own")),
    "kind in other letters": Case(2, "kind: RlhfJob", "kind", 2, ("RlhfJob", "write it so")),
    "no kind": Case(2, "", "kind", 1, ("required", "add kind")),
    "another version": Case(
        *(1, "apiVersion: rlhf-operator.dev/v1", "apiVersion", 1),
        ("another version", "rlhf-operator.dev/v1alpha1"),
    ),
    "a version of something else": Case(
        1, "apiVersion: v1", "apiVersion", 1, ("not the version of an RLHFJob", "got v1")
    ),
    "no spec's member": Case(
        6, "  algorithms:", "spec.algorithms", 6, ("did you mean algorithm?",)
    ),
    # metadata
    "a name with capitals": Case(4, "  name: Sort", "metadata.name", 4, ("Sort", "lower-case")),
    "a name that is too long": Case(
        4, "  name: " + "a" * 41, "metadata.name", 4, ("too long", "41 characters", "1 to 40")
    ),
    "a name with a digit first": Case(
        4, "  name: 8b-ppo", "metadata.name", 4, ("not of the right form", "a letter first")
    ),
    "a name that is a number": Case(4, "  name: 12", "metadata.name", 4, ("not a text", '"12"')),
    "a name that is true": Case(4, "  name: true", "metadata.name", 4, ('"true", in quotes',)),
    "what the cluster writes": Case(
        4, "  name: a\n  uid: x", "metadata.uid", 5, ("unknown field", "the cluster writes this")
    ),
    "a label that is a number": Case(
        4, "  name: a\n  labels: {team: 7}", "metadata.labels.team", 5, ("not a text", '"7"')
    ),
    # unknown fields
    "snake case": Case(
        19,
        "    samples_per_prompt: 8",
        "spec.rollout.samples_per_prompt",
        19,
        ("unknown field", "write samplesPerPrompt"),
    ),
    "a typing error": Case(
        19,
        "    samplesPerPrompt: 8\n    temprature: 1",
        "spec.rollout.temprature",
        20,
        ("did you mean temperature?", "maxPromptTokens"),
    ),
    "a nucleus of nothing": Case(
        19, "    samplesPerPrompt: 8\n    topP: 0", "spec.rollout.topP", 20, ("greater than 0",)
    ),
    "truncated sampling in snake case": Case(
        19, "    samplesPerPrompt: 8\n    top_k: 5", "spec.rollout.top_k", 20, ("write topK",)
    ),
    "a field at the wrong place": Case(
        20, "  seed: 3", "spec.seed", 20, ("seed belongs at spec.schedule.seed",)
    ),
    "a field that is nowhere": Case(
        20, "  banana: 3", "spec.banana", 20, ("remove it", "rlhf explain spec")
    ),
    "a reward model": Case(
        14,
        "    - {model: {source: {path: /rm}}}",
        "spec.rewards[0].model.source",
        14,
        ("unknown field", "allowed huggingFace, revision, path"),
    ),
    # numbers
    "zero steps": Case(16, "    steps: 0", "spec.schedule.steps", 16, ("too small", "from 1 to")),
    "negative steps": Case(16, "    steps: -1", "spec.schedule.steps", 16, ("got -1",)),
    "half a step": Case(16, "    steps: 1.5", "spec.schedule.steps", 16, ("not an integer", "1.5")),
    "a quoted number": Case(
        16, '    steps: "150"', "spec.schedule.steps", 16, ("the text 150", "remove the quotes")
    ),
    "a step count of the old YAML": Case(
        16,
        "    steps: 1_000",
        "spec.schedule.steps",
        16,
        ("kubectl reads in another way", "1000", 'write 1000 or "1_000"'),
    ),
    "a huge number": Case(
        16,
        "    steps: 99999999999999999999",
        "spec.schedule.steps",
        16,
        ("too large", "2147483647"),
    ),
    "a temperature of zero": Case(
        19,
        "    samplesPerPrompt: 8\n    temperature: 0.0",
        "spec.rollout.temperature",
        20,
        ("too small", "greater than 0 and at most 2"),
    ),
    "not a number": Case(
        19,
        "    samplesPerPrompt: 8\n    temperature: .nan",
        "spec.rollout.temperature",
        20,
        ("not a finite number",),
    ),
    "infinity": Case(
        14,
        '    - {weight: .inf, function: {entrypoint: "a:b"}}',
        "spec.rewards[0].weight",
        14,
        ("not a finite number",),
    ),
    "a fraction over one": Case(
        7,
        "    type: GRPO\n    grpo: {clipRange: 2}",
        "spec.algorithm.grpo.clipRange",
        8,
        ("too large", "a number from 0 to 1"),
    ),
    # booleans
    "yes for true": Case(20, "  suspend: yes", "spec.suspend", 20, ("got yes", "write true")),
    "off for false": Case(20, "  suspend: off", "spec.suspend", 20, ("got off", "write false")),
    "one for true": Case(20, "  suspend: 1", "spec.suspend", 20, ("true or false",)),
    # values from a list
    "an algorithm without capitals": Case(
        7, "    type: grpo", "spec.algorithm.type", 7, ("PPO, GRPO, DAPO", "did you mean GRPO?")
    ),
    "an unknown algorithm": Case(7, "    type: ipo", "spec.algorithm.type", 7, ("got ipo",)),
    "the critic of PPO in GRPO": Case(
        7,
        "    type: GRPO\n    grpo: {gaeLambda: 0.9}",
        "spec.algorithm.grpo.gaeLambda",
        8,
        ("unknown field",),
    ),
    # texts
    "no entry point": Case(
        14,
        '    - function: {entrypoint: "exact_match"}',
        "spec.rewards[0].function.entrypoint",
        14,
        ("not of the right form", "package.module:name"),
    ),
    "a file as entry point": Case(
        14,
        '    - function: {entrypoint: "./checks/addv.py:score"}',
        "spec.rewards[0].function.entrypoint",
        14,
        ("not of the right form", "did you mean checks.addv:score?"),
    ),
    "an empty path": Case(
        12, '    train: {path: ""}', "spec.data.train.path", 12, ("too short", "0 characters")
    ),
    "an empty template variable": Case(
        20, "  priorityClassName: {{ x }}", "", 20, ("a key that is not a text",)
    ),
    "an address without scheme": Case(
        20,
        "  checkpoint: {storage: {uri: bucket/x}}",
        "spec.checkpoint.storage.uri",
        20,
        ("s3://bucket/prefix",),
    ),
    "memory in words": Case(
        20,
        "  resources: {head: {memory: 4 gigabytes}}",
        "spec.resources.head.memory",
        20,
        ("not a quantity", "64Gi"),
    ),
    "memory with a unit of its own": Case(
        20,
        "  rollout: {kvCacheMemory: 4 GiB}",
        "spec.rollout.kvCacheMemory",
        20,
        ("not a quantity: got 4 GiB", "write 4Gi"),
    ),
    "half a core": Case(
        20,
        "  resources: {head: {cpu: 0.5}}",
        "spec.resources.head.cpu",
        20,
        ("not a quantity", 'write "0.5", in quotes'),
    ),
    # lists and maps
    "a map for a list": Case(
        14, '    function: {entrypoint: "a:b"}', "spec.rewards", 13, ("not a list", "write -")
    ),
    "an empty map": Case(8, "  models: {}\n  xx:", "spec.models", 8, ("0 entries", "1 to 16")),
    "a text for a map": Case(
        10,
        "      source: tiny-llama",
        "spec.models.actor.source",
        10,
        ("not a map", "huggingFace", "builtin"),
    ),
    "a role that is no name": Case(
        10,
        "      source: {builtin: TinyLlama}\n    9b: {source: {sameAs: actor}}",
        "spec.models[9b]",
        11,
        ("not allowed here", "letters, digits and underscores"),
    ),
    "a list as parameter": Case(
        14,
        '    - function: {entrypoint: "a:b", parameters: {x: [1]}}',
        "spec.rewards[0].function.parameters.x",
        14,
        ("not a plain value", "true or false"),
    ),
    "a section without value": Case(20, "  telemetry:", "spec.telemetry", 20, ("no value",)),
    "a value left out": Case(16, "    steps:", "spec.schedule.steps", 16, ("no value", "write a")),
    "a required field": Case(16, "", "spec.schedule.steps", 15, ("missing", "add steps")),
    # inside one section
    "two sources": Case(
        10,
        "      source: {builtin: TinyLlama, path: /m}",
        "spec.models.actor.source",
        10,
        ("exactly one of", "path and builtin"),
    ),
    "no source": Case(10, "      source: {}", "spec.models.actor.source", 10, ("got none",)),
    "a revision without a hub id": Case(
        10,
        "      source: {path: /m, revision: main}",
        "spec.models.actor.source.revision",
        10,
        ("revision without huggingFace",),
    ),
    "the settings of another algorithm": Case(
        7, "    type: GRPO\n    ppo: {}", "spec.algorithm.ppo", 8, ("got ppo with type GRPO",)
    ),
    "custom without entry point": Case(
        7, "    type: Custom", "spec.algorithm.custom", 6, ("entrypoint", "package.module:Class")
    ),
    "a mini-batch larger than the step": Case(
        17,
        "    promptsPerStep: 64\n    miniBatchPrompts: 65",
        "spec.schedule.miniBatchPrompts",
        18,
        ("got 65, allowed at most promptsPerStep, 64",),
    ),
    "a split of a file": Case(
        12,
        "    train: {path: x.jsonl, split: test}",
        "spec.data.train.split",
        12,
        ("split is for",),
    ),
    # across sections
    "one sample in grpo": Case(
        19,
        "    samplesPerPrompt: 1",
        "spec.rollout.samplesPerPrompt",
        19,
        ("one sample teaches nothing", "samplesPerPrompt: 8"),
    ),
    "no actor": Case(
        9, "    critic:", "spec.models", 8, ("main model is missing", "got critic, allowed actor")
    ),
    "an actor from another role": Case(
        10,
        "      source: {sameAs: reference}",
        "spec.models.actor.source.sameAs",
        10,
        ("the actor cannot take its weights", "got reference"),
    ),
    "weights of a role that is not there": Case(
        10,
        "      source: {builtin: TinyLlama}\n    reference: {source: {sameAs: teacher}}",
        "spec.models.reference.source.sameAs",
        11,
        ("got teacher", "allowed actor"),
    ),
    "a mistyped role": Case(
        10,
        "      source: {builtin: TinyLlama}\n    refrence: {source: {sameAs: actor}}",
        "spec.models.refrence",
        11,
        ("a role that the algorithm does not have", "did you mean reference?"),
    ),
    "two rewards of one name": Case(
        14,
        '    - function: {entrypoint: "a:b"}\n    - function: {entrypoint: "a:c"}',
        "spec.rewards[1].name",
        15,
        ("used twice", "got reward"),
    ),
    "no reward counts": Case(
        14, '    - {weight: 0, function: {entrypoint: "a:b"}}', "spec.rewards", 13, ("weight 0",)
    ),
    "fewer rows than a step": Case(
        12,
        "    train: {builtin: SortDigits, maxRows: 63}",
        "spec.data.train.maxRows",
        12,
        ("got 63", "promptsPerStep, 64"),
    ),
    "responses that are longer on average than at most": Case(
        20,
        "  rollout: {maxResponseTokens: 64, expectedResponseTokens: 65}",
        "spec.rollout.expectedResponseTokens",
        20,
        ("got 65", "maxResponseTokens, 64"),
    ),
    "deadlines in the wrong order": Case(
        20,
        "  startDeadlineSeconds: 61\n  activeDeadlineSeconds: 60",
        "spec.startDeadlineSeconds",
        20,
        ("got 61", "activeDeadlineSeconds, 60"),
    ),
    "more devices than there are": Case(
        20,
        "  placement: {maxDevices: 9}\n  resources: {nodePools: [{name: a}]}",
        "spec.placement.maxDevices",
        20,
        ("got 9", "at most 8 = 1 x 8 (a)"),
    ),
    # the text
    "a key given twice": Case(
        16, "    steps: 1\n    steps: 2", "spec.schedule.steps", 17, ("twice", "line 16")
    ),
    "a tab": Case(16, "\tsteps: 150", "", 16, ("a tab", "indent with spaces")),
    "an open bracket": Case(10, "      source: {builtin: TinyLlama", "", 11, ("not YAML",)),
    "a colon too many": Case(16, "    steps: 150: 3", "", 16, ("mapping values",)),
    "a merge key": Case(20, "  <<: {suspend: true}", "", 20, ("a merge key", "write")),
    "a Python object": Case(
        20, "  suspend: !!python/object:os.system x", "", 20, ("a tag", "python/object")
    ),
    "an alias without anchor": Case(20, "  suspend: *x", "", 20, ("an alias", "*x")),
    "a key that is a number": Case(
        4, "  name: a\n  labels: {1: x}", "metadata.labels", 5, ("not a text", '"1"')
    ),
    "a control character": Case(4, "  name: a\x07", "", 4, ("U+0007", "remove it")),
    "an escape that is no character": Case(4, '  name: "\\U00110000"', "", 1, ("escapes",)),
    "half a character": Case(4, '  name: "\\ud800"', "", 4, ("half a character",)),
}


def manifest(case: Case) -> str:
    """The good manifest with one line replaced; an empty replacement removes the line."""
    lines = [*LINES, ""]
    lines[case.replaced - 1] = case.by
    return "\n".join(line for index, line in enumerate(lines) if line or index == len(LINES))


@pytest.mark.parametrize("case", CASES.values(), ids=CASES.keys())
def test_problem_names_path_line_and_remedy(case: Case) -> None:
    with pytest.raises(ManifestError) as raised:
        load_jobs(manifest(case), "job.yaml")
    found = [each for each in raised.value.problems if each.path == case.path]
    assert found, f"no problem at {case.path!r} in:\n{raised.value}"
    problem = next((each for each in found if each.line == case.line), found[0])
    assert (problem.file, problem.line) == ("job.yaml", case.line)
    for words in case.says:
        assert words in problem.message


def test_the_manifest_that_the_cases_change_is_good() -> None:
    assert [job.name for job in load_jobs("\n".join(LINES), "job.yaml")] == ["sort-grpo"]
