"""Algorithms of a user's own, from a module on the Python path."""

from __future__ import annotations

import importlib
import textwrap
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from rlhf_api.exits import ExitCode
from rlhf_api.plan import GraphName
from rlhf_api.spec.resources import Device
from rlhf_flow.errors import InvalidAlgorithm
from rlhf_flow.jobs.job_graphs import trace_job
from rlhf_flow.jobs.registry import build_algorithm
from rlhf_flow.step.calls import ComputeOptions
from rlhf_flow.step.operations import Custom
from rlhf_planner.plan import make_plan
from rlhf_planner.problem.devices import GIB, local_inventory

REINFORCE = """
    from rlhf_flow import Algorithm, LanguageModel, RewardSource
    from rlhf_flow import Custom

    from rlhf_flow import ClippedLoss

    class Reinforce(Algorithm):
        def __init__(self, baseline: float, refresh: int = 5) -> None:
            if baseline < 0:
                raise ValueError("negative baseline")
            self.baseline = baseline
            self.refresh = refresh

        def roles(self):
            return {"actor": LanguageModel, "reward": RewardSource}

        def step(self, flow, prompts):
            batch = flow.actor.generate(prompts)
            batch |= flow.reward.score(batch)
            batch |= flow.compute(batch, Custom(
                f"{__name__}:advantages", reads=["reward_scores", "response_tokens"],
                writes=["advantages"],
                parameters={"baseline": self.baseline}))
            flow.actor.train(batch, ClippedLoss("reward_valid"))

    def advantages(columns, *, baseline):
        return {}

    class Unfinished(Algorithm):
        def roles(self):
            return {}

    class Unrelated:
        pass
"""

Write = Callable[[str, str], None]


@pytest.fixture
def write(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Write:
    """Puts a module on the Python path."""
    monkeypatch.syspath_prepend(tmp_path)

    def write_module(name: str, text: str) -> None:
        (tmp_path / f"{name}.py").write_text(textwrap.dedent(text))
        importlib.invalidate_caches()  # a folder that was listed in the same tick looks unchanged

    return write_module


def custom_job(job: Any, entrypoint: str, **parameters: object) -> Any:
    custom = {"entrypoint": entrypoint, "parameters": parameters}
    return job(algorithm={"type": "Custom", "custom": custom})


def test_a_class_is_built_with_its_parameters_and_traced(job: Any, write: Write) -> None:
    write("reinforce_a", REINFORCE)
    graph = trace_job(custom_job(job, "reinforce_a:Reinforce", baseline=0.5))[GraphName.STEP]
    ids = [call.id for call in graph.calls]
    assert ids == ["actor.generate", "reward.score", "compute", "actor.train"]
    options = graph.call("compute").options
    assert isinstance(options, ComputeOptions)
    (operation,) = options.operations
    assert isinstance(operation, Custom)
    assert operation.parameters == {"baseline": 0.5}
    assert operation.entrypoint == "reinforce_a:advantages"


@pytest.mark.parametrize(
    ("entrypoint", "parameters", "message"),
    [
        ("nowhere_to_be_found:X", {}, "no module nowhere_to_be_found.*spec.code"),
        ("reinforce_b:Reinforc", {"baseline": 1.0}, "did you mean Reinforce"),
        ("reinforce_b:Unrelated", {}, "is no algorithm.*subclass of rlhf_flow.Algorithm"),
        ("reinforce_b:Unfinished", {}, "lacks a method.*step"),
        ("reinforce_b:Reinforce", {}, "missing a required argument: 'baseline'"),
        ("reinforce_b:Reinforce", {"baseline": 1.0, "gain": 2}, "unexpected keyword.*'gain'"),
        ("reinforce_b:Reinforce", {"baseline": -1.0}, "ValueError: negative baseline"),
    ],
)
def test_what_cannot_be_built_says_why(
    job: Any, write: Write, entrypoint: str, parameters: dict[str, object], message: str
) -> None:
    write("reinforce_b", REINFORCE)
    with pytest.raises(InvalidAlgorithm, match=message) as caught:
        build_algorithm(custom_job(job, entrypoint, **parameters), Device.CPU)
    assert caught.value.exit_code is ExitCode.USER
    assert caught.value.reason == "InvalidAlgorithm"


def test_a_module_that_raises_says_so(job: Any, write: Write) -> None:
    write("broken_module", "1 / 0")
    with pytest.raises(InvalidAlgorithm, match="raised ZeroDivisionError when imported"):
        build_algorithm(custom_job(job, "broken_module:X"), Device.CPU)


def test_a_module_that_imports_something_missing_says_what(job: Any, write: Write) -> None:
    write("needy_module", "import something_not_installed")
    with pytest.raises(InvalidAlgorithm, match="imports something_not_installed, which is not"):
        build_algorithm(custom_job(job, "needy_module:X"), Device.CPU)


def test_a_misspelled_module_of_ours_is_answered_with_the_right_one(job: Any, write: Write) -> None:
    write("misspelled_import", "from rlhf_flow.step.operation import Gae")
    with pytest.raises(InvalidAlgorithm) as caught:
        build_algorithm(custom_job(job, "misspelled_import:X"), Device.CPU)
    assert str(caught.value).split(": ", 1)[0].endswith("misspelled_import.py:1")
    assert "imports rlhf_flow.step.operation, which is not there; did you mean operations?" in str(
        caught.value
    )


def test_a_module_that_exits_says_so(job: Any, write: Write) -> None:
    write("exiting_module", "import sys\nsys.exit(2)")
    with pytest.raises(InvalidAlgorithm, match=r"module\.py:2: .* raised SystemExit when imported"):
        build_algorithm(custom_job(job, "exiting_module:X"), Device.CPU)


def test_the_line_of_an_error_in_a_library_is_that_of_its_caller(job: Any, write: Write) -> None:
    write("calling_a_library", "import yaml\nyaml.safe_load('{')")
    with pytest.raises(InvalidAlgorithm, match=r"library\.py:2: .* raised ParserError"):
        build_algorithm(custom_job(job, "calling_a_library:X"), Device.CPU)


def test_an_installed_algorithm_has_lines_too(
    job: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "site-packages"
    folder.mkdir()
    (folder / "installed_algorithm.py").write_text("1 / 0")
    monkeypatch.syspath_prepend(folder)
    with pytest.raises(InvalidAlgorithm, match=r"site-packages/installed_algorithm\.py:1: "):
        build_algorithm(custom_job(job, "installed_algorithm:X"), Device.CPU)


REFILL = """
    from rlhf_flow import Algorithm, CrossEntropy, Custom, LanguageModel, RewardSource, Scope

    class Refill(Algorithm):
        def roles(self):
            return {"actor": LanguageModel}

        def step(self, flow, prompts):
            enough = Custom(
                "refill:enough", reads=["finished"], writes=["enough"], scope=Scope.BATCH)
            batch = flow.repeat(
                flow.actor.generate, until=enough, max_rounds=3, expected_rounds=2)
            flow.actor.train(batch, CrossEntropy())

    def enough(columns):
        return {}
"""


def test_a_step_that_repeats_is_planned_for_all_of_its_rounds(job: Any, write: Write) -> None:
    write("refill", REFILL)
    custom = {"type": "Custom", "custom": {"entrypoint": "refill:Refill"}}
    made = job(algorithm=custom, rewards=[])
    assert trace_job(made)[GraphName.STEP].regions[0].expected_count == 2
    _, plan = make_plan(made, [local_inventory(1, 5 * GIB)])
    assert plan.inputs[GraphName.STEP].prompt_batches == 3


CRITIC = """
from rlhf_flow import Algorithm, LanguageModel, RewardSource, ScalarModel, ValueLoss
from rlhf_flow.step.operations import Gae, TokenRewards

class Critic(Algorithm):
    def roles(self):
        return {"teacher": LanguageModel, "judge": ScalarModel, "grade": RewardSource}

    def step(self, flow, prompts):
        batch = flow.teacher.generate(prompts)
        batch |= flow.grade.score(batch)
        batch |= flow.judge.values(batch)
        gae = Gae(1.0, 1.0, values="judge_values")
        batch |= flow.compute(batch, TokenRewards("grade_scores"), gae)
        flow.judge.train(batch, ValueLoss("grade_valid", "judge_values"))
"""


def test_where_no_language_model_is_trained_none_is_warmed_up_or_asked(
    job: Any, write: Write
) -> None:
    write("critic_a", CRITIC)
    rewards = [{"role": "grade", "function": {"entrypoint": "mine:score"}}]
    custom = {"type": "Custom", "custom": {"entrypoint": "critic_a:Critic"}}
    data = {"train": {"builtin": "SortDigits"}}
    sections = {"algorithm": custom, "rewards": rewards, "data": data}
    assert list(trace_job(job(**sections))) == [GraphName.STEP], "a builtin task would be asked"
    schedule = {"steps": 2, "promptsPerStep": 4, "warmStart": {"maxSteps": 2}}
    with pytest.raises(InvalidAlgorithm, match="schedule.warmStart needs.*got judge"):
        trace_job(job(**sections, schedule=schedule))
