"""Refusals name the line of the user's file, and the nearest name."""

from __future__ import annotations

import textwrap
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from rlhf_api.plan import GraphName
from rlhf_flow import Flow, LanguageModel, ScalarModel
from rlhf_flow.errors import FlowError, InvalidAlgorithm
from rlhf_flow.jobs.job_graphs import trace_job
from rlhf_flow.step.checks import checked_call, checked_settings, suggest
from rlhf_flow.step.missing_column import column_sources
from rlhf_flow.step.operations import Custom
from rlhf_flow.trace.entrypoints import check_function
from rlhf_flow.trace.graph import DataEdge
from rlhf_flow.trace.symbolic import METHODS
from rlhf_flow.trace.tracing import trace
from rlhf_runtime.controller.batch import Batch

from .stepped import Stepped

MODULE = """
    from rlhf_flow import *
    from rlhf_flow.step.operations import *
    import dataclasses

    MODULE

    class Mine(Algorithm):
        def __init__(self):
            INIT

        def roles(self):
            return {"actor": LanguageModel, "reward": RewardSource}

        def step(self, flow, prompts):
            batch = flow.actor.generate(prompts)
            batch |= flow.reward.score(batch)
            STEP
            batch |= flow.compute(batch, GroupAdvantages("reward_scores", "reward_valid"))
            flow.actor.train(batch, ClippedLoss("reward_valid"))

    def scaled(columns, *, scale, shift=0):
        return {}

    async def later(columns):
        return {}

    def piecewise(columns):
        yield {}

    class Half:
        def distribute(at):
            return None

    TEXT = "a text"
"""
LINES = {"MODULE": 6, "INIT": 10, "STEP": 18}

Refuse = Callable[..., str]


@pytest.fixture
def refuse(
    job: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest
) -> Refuse:
    """What is said about a module with such a line, without its place, which is checked."""
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.chdir(tmp_path)
    name = f"refused_{abs(hash(request.node.name))}"

    def of_line(line: str, where: str = "STEP", steps_below: int = 0) -> str:
        text = textwrap.dedent(MODULE).replace(where, line.replace("SELF", name))
        for other in LINES:
            text = text.replace(other, "pass")
        (tmp_path / f"{name}.py").write_text(text)
        custom = {"type": "Custom", "custom": {"entrypoint": f"{name}:Mine"}}
        with pytest.raises(FlowError) as caught:
            trace_job(job(algorithm=custom))
        message, place = str(caught.value), f"{name}.py:{LINES[where]}: "
        assert message.startswith(place), message
        return message.removeprefix(place).replace(name, "SELF")

    return of_line


@pytest.mark.parametrize("where", LINES)
def test_wherever_a_loss_is_made_its_refusal_names_the_line(refuse: Refuse, where: str) -> None:
    said = refuse("ClippedLoss('reward_valid', clip_range=-1)", where)
    assert said == (
        "ClippedLoss cannot have this clip_range: got clip_range=-1, allowed a number of at least "
        "0; change it"
    )


@pytest.mark.parametrize(
    ("line", "parts"),
    [
        ("ClippedLoss('v', clip_rnge=0.1)", ["clip_rnge=0.1", "clip_range=,", "mean clip_range?"]),
        ("ClippedLoss('v', entropy=0.1)", ["did you mean entropy_coefficient?"]),
        (
            "ClippedLoss()",
            ["got missing a required argument: 'valid'", "allowed valid, objective=, clip_"],
        ),
        ("Gae(1.0, 1.0, 'v', 'r', 'a', 'b', 'c')", ["Gae", "too many positional", "gamma, lam,"]),
        ("dataclasses.replace(ClippedLoss('v'), clip=1)", ["did you mean clip_range?"]),
        ("flow.actor.generate(prompts, temp=1)", ["LanguageModel.generate", "temperature?"]),
        (
            "flow.actor.train(batch)",
            ["LanguageModel.train", "'loss'", "batch, loss, *auxiliary, from_step="],
        ),
        ("flow.compute(batch, operation=1)", ["Flow.compute", "batch, *operations;"]),
        ("flow.every(10)", ["Flow.every", "'body'"]),
        ("flow.every(10, flow.actor.log_probs(batch))", ["got <batch of", "lambda: ..."]),
        ("exit(1)", ["Mine.step raised SystemExit: 1"]),
        ("flow.actr.generate(prompts)", ["no role actr", "did you mean actor?"]),
        ("flow.computer(batch)", ["no role computer", "did you mean compute?"]),
        ("flow.actor.log_prob(batch)", ["no primitive log_prob:", "did you mean log_probs?"]),
        ("batch.select('reward_score')", ["got reward_score,", "did you mean reward_scores?"]),
        ("Gae(1.5, 1.0, 'critic_values')", ["gamma=1.5, allowed a number from 0 to 1"]),
        ("GroupAdvantages('a-b', 'v')", ["scores='a-b', allowed letters of ASCII"]),
        ("GroupAdvantages(None, 'v')", ["scores=None, allowed letters of ASCII"]),
        ("TokenRewards('s', kl_coefficient=-1)", ["kl_coefficient=-1, allowed a number of at le"]),
        ("1 / 0", ["Mine.step raised ZeroDivisionError"]),
    ],
)
def test_a_refusal_says_what_is_allowed_and_what_was_meant(
    refuse: Refuse, line: str, parts: list[str]
) -> None:
    said = refuse(line)
    assert all(part in said for part in parts), said


@pytest.mark.parametrize(
    ("entrypoint", "parameters", "parts"),
    [
        ("SELF:scald", "{}", ["has no scald", "did you mean scaled?"]),
        ("nowhere:scaled", "{}", ["no module nowhere", "spec.code"]),
        ("SELF:TEXT", "{}", ["is no function: got 'a text'"]),
        ("SELF:scaled", "{}", ["missing a required argument: 'scale'", "scaled(columns, *, scale"]),
        ("SELF:scaled", "{'scale': 1, 'shft': 2}", ["unexpected", "did you mean shift?"]),
        (
            "SELF:later",
            "{}",
            ["is an async function, whose result nobody waits for: got <function"],
        ),
        ("SELF:piecewise", "{}", ["is a generator, whose result nobody waits for"]),
        ("./SELF.py:scaled", "{}", ["got ./SELF.py:scaled, ", "did you mean SELF:scaled?"]),
        (".SELF:scaled", "{}", ["got .SELF:scaled, allowed package.module:name; correct the en"]),
        ("SELF:nothing", "{}", ["has no nothing", "correct the entry point of Custom(...)"]),
    ],
)
def test_the_function_of_an_operation_is_looked_up(
    refuse: Refuse, entrypoint: str, parameters: str, parts: list[str]
) -> None:
    said = refuse(f"flow.compute(batch, Custom('{entrypoint}', [], ['x'], {parameters}))")
    assert all(part in said for part in parts), said


@pytest.mark.parametrize(
    ("protocol", "parts"),
    [
        ("SELF:CUTS", ["no such name for the protocol", "correct protocol= of Custom(...)"]),
        ("SELF:TEXTS", ["has no TEXTS; did you mean TEXT?"]),
        ("nowhere:PAIR", ["no module nowhere", "spec.code"]),
        ("SELF:TEXT", ["is no pair: got 'a text' without a function distribute and collect, all"]),
        ("SELF:Half", ["without a function collect, allowed Protocol(distribute, collect) of "]),
    ],
)
def test_the_protocol_of_an_operation_is_looked_up(
    refuse: Refuse, protocol: str, parts: list[str]
) -> None:
    scaled = f"'SELF:scaled', [], ['x'], {{'scale': 1}}, protocol='{protocol}'"
    said = refuse(f"flow.compute(batch, Custom({scaled}))")
    assert all(part in said for part in parts), said


def test_a_call_of_two_protocols_names_its_line(refuse: Refuse) -> None:
    mixed = "MixedGroups('reward_scores', 'reward_valid')"
    own = "Custom('SELF:scaled', [], ['x'], {'scale': 1}, protocol='SELF:PAIR')"
    said = refuse(f"flow.compute(batch, {mixed}, {own})")
    assert said == (
        "a compute call has operations of several protocols: got MixedGroups with none of its own, "
        "SELF:scaled with SELF:PAIR, allowed one for all operations of a call; make a call of its "
        "own for each"
    )


def test_a_function_without_a_signature_is_taken() -> None:
    check_function("builtins:dict", {"scale": 1})


def test_a_module_of_an_operation_that_fails_says_where(refuse: Refuse, tmp_path: Path) -> None:
    (tmp_path / "failing_operations.py").write_text("x = 1\n1 / 0\n")
    said = refuse("flow.compute(batch, Custom('failing_operations:f', [], ['x']))")
    assert said.startswith("failing_operations.py:2: the module of the custom operation")


def test_an_algorithm_whose_step_takes_other_arguments_is_refused(
    job: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(tmp_path)
    text = textwrap.dedent(MODULE).replace("step(self, flow, prompts)", "step(self, flow)")
    for word in LINES:
        text = text.replace(word, "pass")
    (tmp_path / "argumentless.py").write_text(text.replace("prompts", "flow"))
    custom = {"type": "Custom", "custom": {"entrypoint": "argumentless:Mine"}}
    with pytest.raises(InvalidAlgorithm, match=r"^Mine\.step raised TypeError: .*positional"):
        trace_job(job(algorithm=custom))


@checked_settings
class Settings:
    """Like an operation."""

    def __init__(self, first: int, *, second: int = 2) -> None:
        self.sum = first + second

    @checked_call
    def call(self, first: int, *rest: int) -> int:
        """Like a primitive."""
        return first + sum(rest)


def test_right_arguments_pass() -> None:
    assert Settings(1, second=3).sum == 4
    assert Settings(1).call(1, 2, 3) == 6


@pytest.mark.parametrize(
    ("word", "said"),
    [
        ("clip", "did you mean clip_range?"),
        ("Clip_Range", "did you mean clip_range?"),
        ("cl", "otherwise"),
        ("temperature", "otherwise"),
    ],
)
def test_the_nearest_name_or_the_shortest_that_begins_so(word: str, said: str) -> None:
    assert suggest(word, ["clip_range_high", "clip_range", "valid"], "otherwise") == said


WHOLE = """
    from rlhf_flow import *
    from rlhf_flow.step.operations import *

    class Mine(Algorithm):
        def roles(self):
            return ROLES

        def step(self, flow, prompts):
            STEP

    def edited(columns):
        return {}
"""
TWO = '{"actor": LanguageModel, "reward": RewardSource}'


@pytest.mark.parametrize(
    ("begin", "end", "kind"), [("async def", "", "an async function"), ("def", "yield", "a gener")]
)
def test_a_step_that_a_call_does_not_run_is_refused(
    job: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, begin: str, end: str, kind: str
) -> None:
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.chdir(tmp_path)
    name = f"deferred_{begin[:5].strip()}"
    text = textwrap.dedent(WHOLE).replace("ROLES", TWO).replace("def step", f"{begin} step")
    (tmp_path / f"{name}.py").write_text(text.replace("STEP", end or "pass"))
    custom = {"type": "Custom", "custom": {"entrypoint": f"{name}:Mine"}}
    with pytest.raises(InvalidAlgorithm, match=rf"{name}\.py:\d+: .* nothing of it: got {kind}"):
        trace_job(job(algorithm=custom))


@pytest.mark.parametrize(
    ("roles", "step", "line", "message"),
    [
        (TWO, ["pass"], 9, "Mine.step calls nothing"),
        (TWO, ["flow.actor.generate(prompts)"], 9, "a step that trains nothing"),
        ("['actor']", ["pass"], 6, r"Mine.roles\(\) returns something other than roles"),
        ('{"groups": LanguageModel}', ["pass"], 6, r"roles\(\) gives no usable names: got groups"),
        (
            '{"judge": ScalarModel, "actor": LanguageModel}',
            ["flow.actor.train(flow.actor.generate(prompts), CrossEntropy())"],
            None,
            "",
        ),
        (
            TWO,
            [
                "batch = flow.actor.generate(prompts)",
                'edit = Custom("SELF:edited", reads=["response_text"], writes=["response_text"])',
                "batch |= flow.compute(batch, edit)",
            ],
            12,
            "a join overwrites what was generated: got response_text of compute over that of "
            "actor.generate, allowed .* leave it out of the batch by select first",
        ),
        (
            TWO,
            ["flow.actor.train(prompts.select('prompt_id'), ClippedLoss('reward_valid'))"],
            10,
            r"advantages comes from flow.compute\(batch, GroupAdvantages\(...\)\) or "
            r"flow.compute\(batch, RewardsToGo\(...\)\): join",
        ),
    ],
)
def test_every_refusal_of_a_trace_names_its_line(
    job: Any,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    roles: str,
    step: list[str],
    line: int | None,
    message: str,
) -> None:
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.chdir(tmp_path)
    name = f"refused_whole_{abs(hash((roles, *step)))}"
    body = "\n        ".join(step)
    text = textwrap.dedent(WHOLE).replace("ROLES", roles).replace("STEP", body)
    (tmp_path / f"{name}.py").write_text(text.replace("SELF", name))
    custom = {"type": "Custom", "custom": {"entrypoint": f"{name}:Mine"}}
    rewards = [] if line is None else [{"function": {"entrypoint": "mine:score"}}]
    made = job(algorithm=custom, rewards=rewards)
    if line is None:
        graph = trace_job(made)[GraphName.STEP]
        assert graph.locations == dict.fromkeys(("actor.generate", "actor.train"), f"{name}.py:10")
        return
    with pytest.raises(FlowError, match=rf"^{name}\.py:{line}: .*{message}"):
        trace_job(made)


def test_what_a_user_writes_in_the_place_of_the_generated_is_read_where_it_was_left_out(
    job: Any,
) -> None:
    def step(flow: Flow, prompts: Any) -> None:
        batch = flow.actor.generate(prompts)
        edit = Custom(f"{__name__}:edited", reads=["response_text"], writes=["response_text"])
        kept = batch.select(*(batch.column_names - {"response_text"}))
        flow.reward.score(kept | flow.compute(batch, edit))

    assert trace(Stepped(step)).data_edges[-1] == DataEdge(
        "compute", "reward.score", ("response_text",)
    )


def edited(columns: Any) -> dict[str, Any]:
    return {}


def test_hints_name_what_there_is_to_call() -> None:
    roles: Any = {"actor": LanguageModel, "reference": LanguageModel, "critic": ScalarModel}
    assert column_sources(lambda name, _: name == "finished", roles) == [
        "flow.actor.generate(batch)"
    ]
    of_returns = column_sources(lambda name, _: name == "returns", {"actor": LanguageModel})
    assert of_returns == []  # Gae reads a critic's values

    def reads_mask(flow: Flow, prompts: Any) -> None:
        read = Custom(f"{__name__}:edited", reads=["response_mask"], writes=["x"])
        flow.compute(flow.actor.generate(prompts), read)

    with pytest.raises(FlowError, match=r'Custom\(\.\.\., writes=\["response_mask"\]\)\);'):
        trace(Stepped(reads_mask))


def test_a_batch_that_runs_has_every_method_that_hints_name() -> None:
    assert all(hasattr(Batch, name) for name in METHODS)


def test_an_operation_that_is_named_by_its_file_is_answered_with_its_module(refuse: Refuse) -> None:
    said = refuse('flow.compute(batch, Custom("no_such.py:f", reads=[], writes=["x"]))')
    assert said.endswith("did you mean no_such:f?"), said
