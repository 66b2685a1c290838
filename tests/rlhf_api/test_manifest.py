"""Loading whole files: what is accepted, what is refused early, and that nothing crashes it."""

from __future__ import annotations

import json
import time
from pathlib import Path

import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st

from rlhf_api.errors import ManifestError, OverrideError
from rlhf_api.exits import ExitCode
from rlhf_api.reading.fields import all_fields, contract
from rlhf_api.reading.manifest import decode, load_file, load_jobs
from rlhf_api.reading.yaml_documents import MAX_CHARACTERS
from rlhf_api.spec.job import RLHFJob
from rlhf_api.spec.policy_loss import KlPlacement
from rlhf_api.spec.presets import PpoSettings

from ..depth import examples

MANIFESTS = Path(__file__).parent / "manifests"
SMALLEST = (MANIFESTS / "smallest.yaml").read_text()


def problems_of(text: str) -> list[str]:
    with pytest.raises(ManifestError) as raised:
        load_jobs(text, "job.yaml")
    return [str(problem) for problem in raised.value.problems]


def test_smallest_job_has_the_defaults_of_the_models() -> None:
    (job,) = load_file(MANIFESTS / "smallest.yaml")
    assert job.name == "sort-grpo"
    assert job.spec.rollout.samples_per_prompt == 8
    assert job.spec.rollout.temperature == 1.0
    assert job.spec.model_for("reference").source.same_as == "actor"


def test_full_job_keeps_what_it_says() -> None:
    (job,) = load_file(MANIFESTS / "full.yaml")
    settings_in_force = job.spec.algorithm.settings
    assert isinstance(settings_in_force, PpoSettings)
    assert settings_in_force.kl_placement is KlPlacement.REWARD
    assert job.spec.models["actor"].training.learning_rate == 1e-6
    assert job.spec.models["critic"].training.learning_rate == 1e-5
    assert job.spec.rewards[1].function.parameters == {
        "limit": 200,
        "strict": True,
        "unit": "tokens",
    }
    assert job.spec.resources.node_pools[0].num_devices == 32
    assert job.spec.failure_policy.rules[1].on_exit_codes == (137,)


@pytest.mark.parametrize("name", ["smallest.yaml", "full.yaml"])
def test_a_job_written_in_wire_names_loads_as_the_same_job(name: str) -> None:
    (job,) = load_file(MANIFESTS / name)
    wire = job.model_dump(mode="json", by_alias=True, exclude_none=True)
    assert load_jobs(yaml.safe_dump(wire), "again.yaml") == [job]
    assert load_jobs(json.dumps(wire), "again.json") == [job]
    assert RLHFJob.model_validate_json(json.dumps(wire), strict=True) == job


@pytest.mark.parametrize("number", ["1e-6", "1.0e-6", "0.000001", "1E-6", ".1e-5", "+1e-06"])
def test_learning_rates_may_be_written_in_any_way(number: str) -> None:
    override = f"spec.models.actor.training.learningRate={number}"
    (job,) = load_jobs(SMALLEST, "job.yaml", [override])
    assert job.spec.models["actor"].training.learning_rate == pytest.approx(1e-6, rel=1e-12)


def test_quoted_words_of_the_old_yaml_are_texts() -> None:
    labels = """{a: "yes", b: 'no', "on": "y"}"""
    text = SMALLEST.replace("{name: sort-grpo}", f"{{name: sort-grpo, labels: {labels}}}")
    (job,) = load_jobs(text, "job.yaml")
    assert job.metadata.labels == {"a": "yes", "b": "no", "on": "y"}


def test_a_file_may_hold_several_jobs_and_empty_documents() -> None:
    text = f"---\n{SMALLEST}\n---\n---\n{SMALLEST.replace('sort-grpo', 'other')}\n---\n"
    assert [job.name for job in load_jobs(text, "jobs.yaml")] == ["sort-grpo", "other"]


def test_two_jobs_of_one_name_are_refused() -> None:
    (problem,) = problems_of(f"{SMALLEST}\n---\n{SMALLEST}")
    assert problem.startswith("job.yaml:17:18: metadata.name: two jobs of the same name")


def test_problems_of_all_documents_are_reported_in_order_of_lines() -> None:
    bad = SMALLEST.replace("steps: 150", "steps: 0").replace("type: GRPO", "type: nope")
    found = problems_of(f"{bad}\n---\nkind: ConfigMap\n---\n{bad}")
    lines = [int(problem.split(":")[1]) for problem in found]
    assert len(found) == 5
    assert lines == sorted(lines)


def test_every_problem_of_a_document_is_reported_at_once() -> None:
    bad = (
        SMALLEST.replace("name: sort-grpo", "name: Sort")
        .replace("steps: 150", "steps: 0, seeds: 1")
        .replace("builtin: TinyLlama", "builtin: gpt")
    )
    assert {problem.split(": ")[1] for problem in problems_of(bad)} == {
        "metadata.name",
        "spec.schedule.steps",
        "spec.schedule.seeds",
        "spec.models.actor.source.builtin",
    }


@pytest.mark.parametrize("text", ["", "\n", "# nothing\n", "---\n", "null\n", "---\n---\n"])
def test_a_file_without_documents_is_a_problem(text: str) -> None:
    (problem,) = problems_of(text)
    assert "no document" in problem


@pytest.mark.parametrize("text", ["3", "[1, 2]", "word", "true", '"kind: RLHFJob"'])
def test_a_document_that_is_no_map_is_no_manifest(text: str) -> None:
    (problem,) = problems_of(text)
    assert "not a manifest" in problem


def test_files_that_cannot_be_read_are_named(tmp_path: Path) -> None:
    for path, words in ((tmp_path / "none.yaml", "no such file"), (tmp_path, "directory")):
        with pytest.raises(ManifestError, match=words) as raised:
            load_file(path)
        assert str(path) in str(raised.value)


def test_an_endless_file_is_refused_early() -> None:
    with pytest.raises(ManifestError, match="too large"):
        load_file(Path("/dev/zero"))


def test_a_long_text_is_refused_before_it_is_parsed() -> None:
    started = time.monotonic()
    assert "too large" in problems_of("- a\n" * MAX_CHARACTERS)[0]
    assert time.monotonic() - started < 5.0


def test_text_that_is_not_utf8_is_refused_with_its_line() -> None:
    with pytest.raises(ManifestError, match=r"job.yaml:2:6: not UTF-8: got byte 0xe9"):
        decode("a: b\nname: é\n".encode("latin-1").replace(b"name: ", b"name:"), "job.yaml")
    with pytest.raises(ManifestError, match="not UTF-8"):
        decode(SMALLEST.encode("utf-16"), "job.yaml")


def test_a_byte_order_mark_is_no_problem() -> None:
    assert load_jobs(decode(b"\xef\xbb\xbf" + SMALLEST.encode(), "job.yaml"), "job.yaml")


def test_the_error_carries_reason_exit_code_and_problems() -> None:
    with pytest.raises(ManifestError) as raised:
        load_jobs("kind: Pod", "pod.yaml")
    assert raised.value.reason == "InvalidManifest"
    assert raised.value.exit_code is ExitCode.MANIFEST
    (problem,) = raised.value.problems
    assert (problem.path, problem.line, problem.column) == ("kind", 1, 7)


def test_overrides_change_the_document_before_it_is_checked() -> None:
    bad = SMALLEST.replace("steps: 150", "steps: 0")
    (job,) = load_jobs(bad, "job.yaml", ["spec.schedule.steps=3", "spec.rewards[0].weight=2"])
    assert (job.spec.schedule.steps, job.spec.rewards[0].weight) == (3, 2.0)


def test_a_problem_of_an_override_names_the_override() -> None:
    with pytest.raises(ManifestError) as raised:
        load_jobs(SMALLEST, "job.yaml", ["spec.schedule.steps=none"])
    (problem,) = raised.value.problems
    assert str(problem).startswith(
        "--set spec.schedule.steps=none: spec.schedule.steps: not an int"
    )


SORT = SMALLEST.replace("steps: 150", "steps: 150, miniBatchPrompts: 8")
BY_OVERRIDES = {
    "spec.shedule.steps=3": "--set spec.shedule.steps=3: spec.shedule: unknown field",
    "spec.models.actor.source.path=x": "--set spec.models.actor.source.path=x: "
    "spec.models.actor.source: exactly one of",
    "spec.schedule.promptsPerStep=4": "spec.schedule.miniBatchPrompts: a mini-batch larger than "
    "the step (with --set spec.schedule.promptsPerStep=4): got 8",
}


@pytest.mark.parametrize("override", list(BY_OVERRIDES))
def test_a_problem_that_an_override_brings_elsewhere_names_it_too(override: str) -> None:
    """In the field around it, and in another one that is fine without it; what the file has wrong
    by itself stays the file's."""
    bad = SORT.replace("{name: sort-grpo}", "{name: sort-grpo, nothing: 1}")
    with pytest.raises(ManifestError) as raised:
        load_jobs(bad, "job.yaml", [override])
    own, brought = sorted(map(str, raised.value.problems), key=lambda text: "nothing" not in text)
    assert own.startswith("job.yaml:") and "--set" not in own
    assert BY_OVERRIDES[override] in brought


def test_an_override_of_an_unknown_field_is_refused() -> None:
    with pytest.raises(ManifestError, match="did you mean steps"):
        load_jobs(SMALLEST, "job.yaml", ["spec.schedule.stepz=3"])
    with pytest.raises(OverrideError):
        load_jobs(SMALLEST, "job.yaml", ["spec.schedule.steps"])


KEYS = sorted({field.name for field in all_fields(contract())} | {"actor", "zz", "<<", ""})
SCALARS = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(),
    st.floats(),
    st.text(max_size=8),
    st.sampled_from(["GRPO", "PPO", "RLHFJob", "TinyLlama", "a:b", "x" * 2000]),
)
DOCUMENTS = st.recursive(
    SCALARS,
    lambda inner: st.one_of(
        st.lists(inner, max_size=4),
        st.dictionaries(st.sampled_from(KEYS), inner, max_size=6),
    ),
    max_leaves=25,
)


@settings(max_examples=examples(150), deadline=None)
@given(DOCUMENTS)
def test_any_document_gives_jobs_or_problems(document: object) -> None:
    head = {"apiVersion": "rlhf-operator.dev/v1alpha1", "kind": "RLHFJob"}
    for text in (json.dumps(document), json.dumps({**head, "spec": document})):
        assert_jobs_or_problems(text)


@settings(max_examples=examples(300), deadline=None)
@given(
    st.text(alphabet=st.sampled_from("ab1:-,[]{}&*!|>'\"%@`#?~ \n\t\\<=.\x00é\ud800"), max_size=40)
)
def test_any_text_gives_jobs_or_problems(text: str) -> None:
    assert_jobs_or_problems(text)


@settings(max_examples=examples(150), deadline=None)
@given(st.data())
def test_any_change_of_a_good_manifest_gives_jobs_or_problems(data: st.DataObject) -> None:
    start = data.draw(st.integers(0, len(SMALLEST)))
    end = data.draw(st.integers(start, min(len(SMALLEST), start + 12)))
    inserted = data.draw(st.text(max_size=4))
    assert_jobs_or_problems(SMALLEST[:start] + inserted + SMALLEST[end:])


@settings(max_examples=examples(150), deadline=None)
@given(st.binary(max_size=60))
def test_any_bytes_give_jobs_or_problems(content: bytes) -> None:
    try:
        text = decode(content, "job.yaml")
    except ManifestError:
        return
    assert_jobs_or_problems(text)


@settings(max_examples=examples(150), deadline=None)
@given(st.sampled_from([field.path for field in all_fields(contract())]), SCALARS)
def test_any_value_of_any_field_gives_jobs_or_problems(path: str, value: object) -> None:
    place = path.replace("<name>", "actor").replace("[]", "[0]")
    try:
        load_jobs(SMALLEST, "job.yaml", [f"{place}={json.dumps(value)}"])
    except (ManifestError, OverrideError) as error:
        assert str(error)


def assert_jobs_or_problems(text: str) -> None:
    try:
        jobs = load_jobs(text, "job.yaml")
    except ManifestError as error:
        assert error.problems
        assert all(problem.what and problem.file for problem in error.problems)
    else:
        assert jobs
