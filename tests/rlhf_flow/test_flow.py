"""The rules of a step: roles, primitives, options, fields, ids."""

from __future__ import annotations

import pickle
from collections.abc import Callable, Sequence

import pytest

from rlhf_api.spec.policy_loss import KlEstimator
from rlhf_flow import (
    Algorithm,
    BatchValue,
    ClippedLoss,
    CrossEntropy,
    Flow,
    LanguageModel,
    RewardSource,
    Roles,
    ScalarModel,
    ValueLoss,
)
from rlhf_flow.errors import FlowError, UnknownPrimitive, UnknownRole
from rlhf_flow.step.calls import GenerateOptions, ModelCall, TrainOptions
from rlhf_flow.step.operations import Custom, Gae, GroupAdvantages, Scope, Whiten
from rlhf_flow.trace.tracing import trace

ROLES = {"actor": LanguageModel, "critic": ScalarModel, "reward": RewardSource}


class Batch:
    """A batch of a backend that runs: fields only."""

    def __init__(self, fields: set[str]) -> None:
        self.column_names = frozenset(fields)

    def __or__(self, other: BatchValue) -> Batch:
        return Batch({*self.column_names, *other.column_names})

    def select(self, *names: str) -> Batch:
        return Batch(set(names))

    def rename(self, **names: str) -> Batch:
        return Batch({names.get(name, name) for name in self.column_names})

    def broadcast(self, like: BatchValue) -> Batch:
        return self

    def concat(self, other: BatchValue) -> Batch:
        return self


class RunningBackend:
    """Runs steps as a driver does: every n-th step the body, a repeat until the third round."""

    def __init__(self) -> None:
        self.calls: list[ModelCall] = []
        self.step = 0

    def run(
        self, call: ModelCall, batch: BatchValue, auxiliary: Sequence[BatchValue] = ()
    ) -> Batch:
        self.calls.append(call)
        return Batch({*call.carries, *call.writes})

    def no_rows(self) -> Batch:
        return Batch(set())

    def pretraining(self) -> Batch:
        return Batch({"prompt_tokens", "prompt_id", "response_tokens"})

    def every(self, region: str, n: int, body: Callable[[], None]) -> None:
        if self.step % n == 0:
            body()

    def repeat(
        self,
        region: str,
        body: Callable[[BatchValue], BatchValue],
        until: Callable[[BatchValue], BatchValue],
        max_rounds: int,
        expected_rounds: float,
    ) -> BatchValue:
        batch = body(prompts())
        for _ in range(2):
            until(batch)
            batch = body(prompts())
        return batch


def flow_of(roles: Roles | None = None) -> tuple[Flow, RunningBackend]:
    backend = RunningBackend()
    return Flow(roles or ROLES, backend), backend


def prompts() -> Batch:
    return Batch({"prompt_tokens", "prompt_id", "record"})


def test_a_call_carries_what_the_primitive_table_says() -> None:
    flow, backend = flow_of()
    with flow.step():
        flow.actor.generate(prompts(), samples=2)
    (call,) = backend.calls
    assert call.id == "actor.generate"
    assert call.reads == call.carries == ("prompt_id", "prompt_tokens", "record")
    assert call.writes == (
        "finished",
        "response_text",
        "response_tokens",
        "rollout_log_probs",
        "sample_index",
        "stop_reason",
    )
    assert call.options == GenerateOptions(samples=2)
    assert pickle.loads(pickle.dumps(call)) == call


def test_call_sites_are_numbered_by_kind_and_anew_in_every_step() -> None:
    flow, backend = flow_of()
    for _ in range(2):
        with flow.step():
            flow.actor.generate(prompts())
            flow.actor.generate(prompts(), greedy=True)
    ids = [call.id for call in backend.calls]
    assert ids == ["actor.generate", "actor.generate#2"] * 2


class Regions(Algorithm):
    """Repeats, masks, and evaluates every other step."""

    def roles(self) -> Roles:
        return ROLES

    def step(self, flow: Flow, prompts: BatchValue) -> None:
        def sample(fresh: BatchValue) -> BatchValue:
            batch = flow.actor.generate(fresh)
            batch |= flow.compute(batch, mask)
            return batch | flow.reward.score(batch)

        def look() -> None:
            flow.reward.score(flow.actor.generate(prompts, greedy=True))

        enough = Custom(
            f"{__name__}:enough", reads=["reward_scores"], writes=["enough"], scope=Scope.BATCH
        )
        mask = Custom(f"{__name__}:enough", reads=["response_tokens"], writes=["response_mask"])
        batch = flow.repeat(sample, until=enough, max_rounds=4, expected_rounds=2.5)
        flow.every(2, look)
        flow.reward.score(batch)
        flow.actor.train(batch, CrossEntropy())


def enough(columns: object) -> object:
    """The condition."""
    return columns


def test_ids_in_regions_are_the_same_in_every_round_and_in_the_trace() -> None:
    graph = trace(Regions())
    traced = [call.id for call in graph.calls]
    assert traced == [
        "repeat/actor.generate",
        "repeat/compute",
        "repeat/reward.score",
        "repeat/until/compute",
        "every-2/actor.generate",
        "every-2/reward.score",
        "reward.score",
        "actor.train",
    ]
    assert "response_mask" in graph.call("actor.train").reads
    flow, backend = flow_of()
    with flow.step():
        Regions().step(flow, prompts())
    assert {call.id for call in backend.calls} == set(traced)
    assert [c.id for c in backend.calls].count("repeat/actor.generate") == 3
    assert {c.id: c for c in backend.calls} == {c.id: c for c in graph.calls}
    assert graph.expected_count("repeat/actor.generate") == 2.5
    assert graph.expected_count("every-2/reward.score") == 0.5
    assert graph.expected_count("reward.score") == 1


def test_several_operations_are_one_call_that_reads_what_none_of_them_writes() -> None:
    flow, backend = flow_of()
    with flow.step():
        batch = Batch({"token_rewards", "critic_values", "reward_valid"})
        flow.compute(batch, Gae(1.0, 0.95, values="critic_values"), Whiten("reward_valid"))
    (call,) = backend.calls
    assert call.id == "compute"
    assert call.reads == ("critic_values", "reward_valid", "token_rewards")
    assert call.writes == ("advantages", "returns")


def test_an_unknown_role_names_the_roles() -> None:
    flow, _ = flow_of()
    with pytest.raises(UnknownRole, match="no role refrence.*actor, critic, reward"):
        _ = flow.refrence
    assert not hasattr(flow, "reference")


def test_an_unknown_primitive_names_those_of_the_kind() -> None:
    flow, _ = flow_of()
    with pytest.raises(UnknownPrimitive, match="critic has no primitive generate.*train, values"):
        flow.critic.generate(prompts())


def test_a_missing_field_names_call_field_source_and_nearest_field() -> None:
    flow, _ = flow_of()
    with flow.step(), pytest.raises(FlowError) as caught:
        flow.compute(
            Batch({"reward_score", "prompt_id", "response_tokens"}),
            GroupAdvantages("reward_scores", "reward_valid"),
        )
    text = str(caught.value)
    assert "compute reads the column reward_scores" in text
    assert "flow.reward.score(batch)" in text
    assert "nearest column is reward_score" in text


def test_a_field_that_no_role_writes_is_explained() -> None:
    flow, _ = flow_of({"actor": LanguageModel})
    batch = Batch({"prompt_tokens", "response_tokens", "rollout_log_probs", "advantages"})
    with flow.step(), pytest.raises(FlowError, match="no role of this algorithm writes reward_val"):
        flow.actor.train(batch, ClippedLoss("reward_valid"))


def test_the_loss_decides_what_training_reads() -> None:
    flow, backend = flow_of()
    everything = Batch(
        {
            *("prompt_tokens", "response_tokens", "advantages", "rollout_log_probs"),
            *("reward_valid", "actor_log_probs", "reference_log_probs"),
        }
    )
    with flow.step():
        flow.actor.train(everything, ClippedLoss("reward_valid"))
        flow.actor.train(
            everything,
            ClippedLoss(
                "reward_valid",
                kl_coefficient=0.1,
                kl_estimator=KlEstimator.K3,
                reference_log_probs="reference_log_probs",
                old_log_probs="actor_log_probs",
            ),
        )
        flow.actor.train(everything, CrossEntropy())
    plain, full, supervised = (set(call.reads) for call in backend.calls)
    assert full - plain == {"actor_log_probs", "reference_log_probs"}
    assert supervised == {"prompt_tokens", "response_tokens"}


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"samples": 0}, "samples=0.*at least 1"),
        ({"samples": True}, "samples=True"),
        ({"temperature": 0.0}, "temperature=0.0.*greedy"),
        ({"greedy": 1}, "greedy=1.*true or false"),
        ({"greedy": True, "temperature": 0.7}, "temperature=0.7.*none beside greedy"),
    ],
)
def test_wrong_options_are_refused(options: dict[str, object], message: str) -> None:
    flow, _ = flow_of()
    with flow.step(), pytest.raises(FlowError, match=message):
        flow.actor.generate(prompts(), **options)


@pytest.mark.parametrize(
    ("role", "loss", "message"),
    [
        (
            "actor",
            ValueLoss("reward_valid", "critic_values"),
            r"actor\.train needs.*got ValueLoss.*allowed ClippedLoss\(...\) or CrossEntropy",
        ),
        ("actor", "supervised", "got 'supervised'"),
        ("critic", ClippedLoss("reward_valid"), "got ClippedLoss.*allowed ValueLoss"),
    ],
)
def test_a_role_is_trained_by_a_loss_that_fits_it(role: str, loss: object, message: str) -> None:
    flow, _ = flow_of({"actor": LanguageModel, "critic": ScalarModel})
    with flow.step(), pytest.raises(FlowError, match=message):
        getattr(flow, role).train(prompts(), loss)


def test_auxiliary_losses_read_their_own_batches() -> None:
    flow, backend = flow_of()
    batch = Batch({"prompt_tokens", "response_tokens", "advantages", "rollout_log_probs", "valid"})
    with flow.step():
        own = ClippedLoss("valid")
        flow.actor.train(batch, own, (flow.pretraining(), CrossEntropy(weight=0.5)), from_step=2)
    (call,) = backend.calls
    assert set(call.reads) == batch.column_names
    assert call.auxiliary_reads == (("prompt_tokens", "response_tokens"),)
    assert call.options == TrainOptions(own, 2, (CrossEntropy(weight=0.5),))


@pytest.mark.parametrize(
    ("role", "auxiliary", "message"),
    [
        ("actor", CrossEntropy(), r"after its own loss: got CrossEntropy.*\(batch, CrossEntropy"),
        ("actor", (CrossEntropy(), "batch"), "got .CrossEntropy.*'batch'"),
        ("actor", ("batch", ClippedLoss("valid")), r"allowed \(batch, CrossEntropy\(\.\.\.\)\)"),
        ("actor", (None, CrossEntropy()), "takes a batch: got None"),
        ("critic", ("batch", CrossEntropy()), "allowed none"),
    ],
)
def test_what_is_no_auxiliary_loss_is_refused(role: str, auxiliary: object, message: str) -> None:
    flow, _ = flow_of()
    batch = Batch({"prompt_tokens", "response_tokens", "returns", "values", "valid"})
    loss = CrossEntropy() if role == "actor" else ValueLoss("valid", "values")
    with flow.step(), pytest.raises(FlowError, match=message):
        getattr(flow, role).train(batch, loss, auxiliary)


@pytest.mark.parametrize("weight", [0, -1.0, True, float("inf")])
def test_a_loss_weighs_more_than_nothing(weight: float) -> None:
    with pytest.raises(FlowError, match="weight.*a number above 0"):
        CrossEntropy(weight=weight)


@pytest.mark.parametrize("from_step", [-1, True, 1.5])
def test_training_begins_with_a_step(from_step: object) -> None:
    flow, _ = flow_of()
    with flow.step(), pytest.raises(FlowError, match="from_step.*at least 0"):
        flow.actor.train(prompts(), CrossEntropy(), from_step=from_step)


def test_calls_outside_a_step_and_steps_in_steps_are_refused() -> None:
    flow, _ = flow_of()
    with pytest.raises(FlowError, match="outside a step"):
        flow.actor.generate(prompts())
    with flow.step(), pytest.raises(FlowError, match="inside a step"), flow.step():
        pass


@pytest.mark.parametrize(
    "roles",
    [
        {},
        {"compute": LanguageModel},
        {"rollout": LanguageModel},
        {"time": LanguageModel},
        {"a b": LanguageModel},
        {"évaluation": LanguageModel},
        {"a" * 64: LanguageModel},
    ],
)
def test_unusable_role_names_are_refused(roles: Roles) -> None:
    with pytest.raises(FlowError, match="no usable names"):
        Flow(roles, RunningBackend())


@pytest.mark.parametrize("name", ["pass-rate", "évaluation", "", "a" * 64, "1st"])
def test_names_of_fields_that_no_plan_could_hold_are_refused(name: str) -> None:
    with pytest.raises(FlowError, match="no column may have: got"):
        Custom("mine:rate", reads=["reward_scores"], writes=[name])
    with pytest.raises(FlowError, match="no column may have: got"):
        Custom("mine:rate", reads=[name], writes=["rate"])


@pytest.mark.parametrize("n", [0, -1, 1.5, True])
def test_every_needs_a_number_of_steps(n: int) -> None:
    flow, _ = flow_of()
    with flow.step(), pytest.raises(FlowError, match="flow.every needs a number of steps"):
        flow.every(n, lambda: None)


def test_repeat_needs_a_condition_and_bounds() -> None:
    flow, _ = flow_of()
    enough = Custom("mine:enough", reads=[], writes=["enough"], scope=Scope.BATCH)
    of_groups = Custom("mine:enough", reads=[], writes=["enough"])
    with flow.step():
        for until in (Gae(1, 1, values="critic_values"), of_groups):
            with pytest.raises(FlowError, match=r"cannot decide when to end.*scope=Scope\.BATCH"):
                flow.repeat(flow.actor.generate, until=until, max_rounds=2, expected_rounds=1)
        with pytest.raises(FlowError, match="sensible bound"):
            flow.repeat(flow.actor.generate, until=enough, max_rounds=2, expected_rounds=3)


def test_compute_needs_operations() -> None:
    flow, _ = flow_of()
    with flow.step(), pytest.raises(FlowError, match="needs operations"):
        flow.compute(prompts())


def test_what_is_no_batch_is_refused() -> None:
    flow, _ = flow_of()
    with flow.step(), pytest.raises(FlowError, match="takes a batch: got None"):
        flow.actor.generate(None)


@pytest.mark.parametrize("entrypoint", ["mine", ":f", "mine:", "mine:a b"])
def test_a_custom_operation_needs_an_entry_point(entrypoint: str) -> None:
    with pytest.raises(FlowError, match="names no function"):
        Custom(entrypoint, reads=[], writes=["x"])


def test_a_custom_operation_needs_lists_of_fields() -> None:
    with pytest.raises(FlowError, match=r"write \['reward_scores'\]"):
        Custom("mine:f", reads="reward_scores", writes=[])
