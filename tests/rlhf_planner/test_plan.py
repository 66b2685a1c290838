"""Plans of roles that share one pool: what they decide, what they refuse, what always holds."""

from __future__ import annotations

import contextlib
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rlhf_api.calls import CallKind
from rlhf_api.exits import ExitCode
from rlhf_api.mesh import Mesh
from rlhf_api.plan import GenerationPlan, GraphName, ModelHead, Plan, Pool
from rlhf_api.plan_memory import MemoryPlan, MemoryUse, phase_peaks
from rlhf_api.spec.models import Precision
from rlhf_api.spec.resources import Device
from rlhf_flow.errors import DoesNotDivide, DoesNotFit, KvCacheTooSmall, NotOffered, PlanError
from rlhf_flow.jobs.job_graphs import trace_job
from rlhf_planner.memory.role_model import MIB
from rlhf_planner.plan import make_plan, plan_job, pools_of
from rlhf_planner.problem.devices import GIB
from rlhf_planner.problem.model_shapes import WELL_KNOWN_MODELS

from ..depth import examples
from .phases import peaks_of
from .pools import pool_of

LLAMA = {"source": {"huggingFace": "meta-llama/Llama-3.1-8B"}}
FRUGAL = {"activationRecompute": True, "microBatchTokens": 2048}
SMALL_STEP = {"steps": 10, "promptsPerStep": 8}
LARGE_STEP = {"steps": 10, "promptsPerStep": 512}
"""Of so many prompts that engines have as many sequences as they decode at once."""


MANY = """
from rlhf_flow import Algorithm, ClippedLoss, LanguageModel, RewardSource
from rlhf_flow.step.operations import GroupAdvantages


class Many(Algorithm):
    def __init__(self, samples):
        self.samples = samples

    def roles(self):
        return {"actor": LanguageModel, "reward": RewardSource}

    def step(self, flow, prompts):
        batch = flow.actor.generate(prompts, samples=self.samples)
        batch |= flow.reward.score(batch)
        batch |= flow.compute(batch, GroupAdvantages("reward_scores", "reward_valid"))
        flow.actor.train(batch, ClippedLoss("reward_valid"))
"""


def cpus(count: int = 2, gibibytes: float = 4) -> Pool:
    return pool_of("local", Device.CPU, 1, count, int(gibibytes * GIB))


def gpus(count: int = 8, nodes: int = 1, gibibytes: float = 80) -> Pool:
    return pool_of("pool", Device.GPU, nodes, count, int(gibibytes * GIB))


def plan(made: Any, devices: Pool) -> Plan:
    return make_plan(made, (devices,))[1]


def memory_of(made: Plan) -> MemoryPlan:
    """Of the one group of devices."""
    (memory,) = made.memory
    return memory


def engines_of(made: Plan) -> GenerationPlan:
    """Of the one role that generates."""
    (engines,) = made.generations
    return engines


def llama(job: Any, **sections: Any) -> Any:
    models = {"actor": LLAMA | {"training": FRUGAL}}
    rollout = {"samplesPerPrompt": 4, "maxPromptTokens": 512, "maxResponseTokens": 512}
    return job(**({"models": models, "rollout": rollout, "schedule": SMALL_STEP} | sections))


LONG = {"samplesPerPrompt": 8, "maxPromptTokens": 1024, "maxResponseTokens": 1024}


@pytest.mark.parametrize("gibibytes", [40, 80, 140, 300])
def test_micro_batches_are_as_large_as_memory_allows(job: Any, gibibytes: int) -> None:
    """Unless the manifest says how large they are. Nothing is computed twice for it where the
    manifest forbids that."""

    def of_size(tokens: int | None) -> Plan:
        training: dict[str, Any] = {"activationRecompute": False}
        training |= {} if tokens is None else {"microBatchTokens": tokens}
        models = {"actor": LLAMA | {"training": training}}
        schedule = {"steps": 1, "promptsPerStep": 128}
        return plan(job(models=models, rollout=LONG, schedule=schedule), gpus(8, 1, gibibytes))

    fitting = []
    for tokens in (16384, 8192, 4096, 2048, 1024):
        with contextlib.suppress(DoesNotFit):
            fitting.append((tokens, of_size(tokens)))
    made = of_size(None)
    tokens, expected = fitting[0]
    assert memory_of(made) == memory_of(expected)
    assert made.roles == expected.roles
    told = [reason for reason in made.reasons if "micro-batches of actor" in reason]
    assert len(told) == (tokens < 16384) and all(f"up to {tokens} tokens" in r for r in told)


def test_an_engine_gets_its_own_part_of_a_device(job: Any) -> None:
    """Of a GPU it shares with the trainer's weights and optimizer."""
    made = plan(llama(job), gpus(8, gibibytes=60))
    memory, engines = memory_of(made), engines_of(made)
    share = made.engine_bytes("actor")
    weights = next(i.bytes for i in memory.items if i.what is MemoryUse.GENERATION_WEIGHTS)
    trainer = sum(
        i.bytes for i in memory.items if i.what in (MemoryUse.MASTER_WEIGHTS, MemoryUse.OPTIMIZER)
    )
    assert engines.kv_cache_bytes + weights < share
    assert share + trainer <= memory.capacity_bytes


def test_every_call_lies_on_all_devices_and_verifiers_on_the_host(job: Any) -> None:
    made = plan(job(algorithm={"type": "PPO", "ppo": {"klCoefficient": 0.1}}), cpus(2))
    (pool,) = made.pools
    assert made.roles_in("local") == ("actor", "reference", "critic")
    assert (pool.name, pool.num_devices) == ("local", 2)
    for call in made.calls:
        if call.kind is CallKind.SCORE:
            assert call.mesh is None
        else:
            assert call.mesh == Mesh(pool="local", data=2)
    assert made.call(GraphName.STEP, "critic.train") is not None
    assert made.call(GraphName.EVALUATION, "critic.train") is None


def test_roles_say_kind_origin_size_and_precision(job: Any) -> None:
    sections = {"algorithm": {"type": "PPO", "ppo": {"klCoefficient": 0.1}}}
    made = plan(job(**sections), cpus())
    found = {
        r.role: (r.head, r.is_trained, r.generates, r.origin, r.num_parameters, r.precision)
        for r in made.roles
    }
    float32 = Precision.FLOAT32
    assert found == {
        "actor": (ModelHead.LM, True, True, "actor", 541_312, float32),
        "reference": (ModelHead.LM, False, False, "actor", 541_312, float32),
        "critic": (ModelHead.SCALAR, True, False, "actor", 533_248, float32),
        "reward": (None, False, False, None, 0, None),
    }
    on_gpus = plan(job(**sections), gpus()).role("actor")
    assert on_gpus is not None and on_gpus.precision is Precision.BFLOAT16


def test_memory_is_that_of_the_rows_that_calls_ask_for(
    job: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Not of rollout.samplesPerPrompt, which a call may overrule."""
    (tmp_path / "many.py").write_text(MANY)
    monkeypatch.syspath_prepend(tmp_path)

    def made(samples: int, default: int) -> Plan:
        parameters = {"samples": samples}
        algorithm = {
            "type": "Custom",
            "custom": {"entrypoint": "many:Many", "parameters": parameters},
        }
        rollout = {"samplesPerPrompt": default, "maxPromptTokens": 64, "maxResponseTokens": 64}
        return plan(job(algorithm=algorithm, rollout=rollout), cpus())

    few, many = made(1, 64), made(64, 1)
    counts = [engines_of(each).max_samples_per_prompt for each in (few, many)]
    assert counts == [1, 64]

    def masks(plan: Plan) -> int:
        return sum(each.bytes for each in memory_of(plan).items if each.what is MemoryUse.MASKS)

    assert masks(few) == 0 < masks(many)


def test_a_plan_round_trips_through_json_and_is_deterministic(job: Any) -> None:
    made = plan(job(), cpus())
    text = made.model_dump_json(by_alias=True)
    assert Plan.model_validate_json(text) == made
    assert plan(job(), cpus()).model_dump_json(by_alias=True) == text
    assert '"kvCacheBytes"' in text and '"version":3' in text


def test_a_plan_of_another_version_is_refused(job: Any) -> None:
    document = plan(job(), cpus()).model_dump(mode="json", by_alias=True)
    with pytest.raises(ValueError, match="version"):
        Plan.model_validate(document | {"version": 1})


def test_generation_memory_stays_where_it_fits(job: Any) -> None:
    generation = engines_of(plan(job(), cpus()))
    assert not generation.release_during_training
    assert (generation.mesh.tensor, generation.mesh.data) == (1, 2)
    assert generation.max_sequence_tokens == 64


@pytest.mark.parametrize(
    ("prompts", "held_out", "sequences"),
    [(101, None, 51 * 4), (999, None, 256), (101, 409, 205), (101, 99, 51 * 4), (3, 9999, 256)],
)
def test_a_cache_is_for_the_sequences_that_an_engine_gets(
    job: Any, prompts: int, held_out: int | None, sequences: int
) -> None:
    """Whole prompts with four responses each, or one to each held-out prompt as far as it is known
    how many these are, over two engines."""
    data: dict[str, Any] = {"train": {"path": "train.jsonl"}, "evaluation": {"path": "test.jsonl"}}
    data["evaluation"] |= {} if held_out is None else {"maxRows": held_out}
    made = plan(job(schedule={"steps": 1, "promptsPerStep": prompts}, data=data), cpus())
    # 64 tokens are two blocks of 32; tiny-llama takes 2048 bytes a token.
    assert engines_of(made).kv_cache_bytes == (sequences * 2 + 1) * 32 * 2048
    assert any(f"all that {sequences} longest sequences need" in each for each in made.reasons)


def test_a_small_cache_has_a_floor_on_cpus(job: Any) -> None:
    rollout = {"samplesPerPrompt": 2, "maxConcurrentSequences": 1}
    rollout |= {"maxPromptTokens": 8, "maxResponseTokens": 8}
    assert engines_of(plan(job(rollout=rollout), cpus())).kv_cache_bytes == 16 * MIB


def test_generation_memory_is_released_where_it_does_not_fit_beside_training(job: Any) -> None:
    roomy = engines_of(plan(llama(job, schedule=LARGE_STEP), gpus(8, gibibytes=200)))
    tight = engines_of(plan(llama(job, schedule=LARGE_STEP), gpus(8, gibibytes=60)))
    assert not roomy.release_during_training
    assert tight.release_during_training


def test_a_cache_that_cannot_be_whole_takes_what_is_left(job: Any) -> None:
    made = plan(llama(job, schedule=LARGE_STEP), gpus(8, gibibytes=60))
    assert memory_of(made).peak_bytes <= memory_of(made).capacity_bytes
    peaks = peaks_of(memory_of(made))
    held = max(peaks["actor.generate"], peaks["actor.reshard"])
    assert held == memory_of(made).capacity_bytes
    assert engines_of(made).kv_cache_bytes > 1024 * 128 * 1024


def test_engines_span_more_ranks_where_the_weights_do_not_fit_on_one(job: Any) -> None:
    big = {"source": {"huggingFace": "Qwen/Qwen2.5-32B"}, "training": FRUGAL}
    generation = engines_of(plan(llama(job, models={"actor": big}), gpus(8, nodes=8, gibibytes=60)))
    assert generation.mesh.tensor == 2
    assert generation.mesh.data == 32


def test_weights_are_packed_on_cpus_where_memory_allows(job: Any) -> None:
    """The copies come before a release of memory, and go before anything else is given up."""
    source = {"huggingFace": "Qwen/Qwen2.5-0.5B"}
    asked = job(models={"actor": {"source": source, "training": FRUGAL}}, schedule=LARGE_STEP)

    def of(gibibytes: float) -> Plan:
        return plan(asked, cpus(2, gibibytes=gibibytes))

    roomy = of(32)
    assert engines_of(roomy).packs_weights and not engines_of(roomy).release_during_training
    packed = {i.what: i for i in memory_of(roomy).items if i.role == "actor"}
    # 0.5 billion parameters in float32, of which norms and biases are not multiplied with.
    size = packed[MemoryUse.PACKED_WEIGHTS].bytes
    whole = packed[MemoryUse.GENERATION_WEIGHTS].bytes
    assert 0.995 * whole < size * engines_of(roomy).mesh.tensor < whole
    assert packed[MemoryUse.PACKED_WEIGHTS].phases == packed[MemoryUse.GENERATION_WEIGHTS].phases
    assert any("packed copies of its weights: CPUs" in reason for reason in roomy.reasons)
    smallest = roomy
    states = [(True, False)]
    for tenths in range(320, 0, -1):
        try:
            smallest = of(tenths / 10)
        except DoesNotFit:
            break
        engines = engines_of(smallest)
        states.append((engines.packs_weights, engines.release_during_training))
    assert list(dict.fromkeys(states))[:2] == [(True, False), (False, False)]
    assert states[-1] == (False, True)
    assert any("packed copies of them do not fit" in reason for reason in smallest.reasons)
    assert not engines_of(plan(asked, gpus(8, gibibytes=80))).packs_weights


TWO = """
from rlhf_flow import Algorithm, CrossEntropy, LanguageModel

class Distill(Algorithm):
    def roles(self):
        return {"actor": LanguageModel, "teacher": LanguageModel}

    def step(self, flow, prompts):
        flow.actor.generate(prompts, greedy=True)
        flow.actor.train(flow.teacher.generate(prompts, samples=3), CrossEntropy())
"""


def test_each_role_that_generates_has_engines_and_memory_of_its_own(
    job: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "two.py").write_text(TWO)
    monkeypatch.syspath_prepend(tmp_path)
    algorithm = {"type": "Custom", "custom": {"entrypoint": "two:Distill"}}
    teacher = {"source": {"huggingFace": "Qwen/Qwen2.5-0.5B"}, "training": FRUGAL}
    models = {"actor": {"source": {"builtin": "TinyLlama"}}, "teacher": teacher}
    asked = job(algorithm=algorithm, models=models, rewards=[], schedule=LARGE_STEP)
    made = plan(asked, cpus(2, gibibytes=4.4))
    engines = {
        each.role: (each.mesh.tensor, each.max_samples_per_prompt) for each in made.generations
    }
    assert engines == {"actor": (2, 4), "teacher": (2, 3)}, "engines of a process share its groups"
    assert made.policy == "actor" and memory_of(made).peak_bytes <= memory_of(made).capacity_bytes
    weights = MemoryUse.GENERATION_WEIGHTS
    tight = plan(asked, cpus(2, gibibytes=3.4))
    held = {item.role: item.phases for item in memory_of(tight).items if item.what is weights}
    phases = {role: {phase for phase in held[role] if phase.role != role} for role in held}
    assert phases == {"actor": set(), "teacher": set()}, "each is released for the other"
    with pytest.raises(NotOffered, match="several roles that generate.*got actor, teacher"):
        plan(asked, gpus(2))


NAMED = """
from rlhf_flow import Algorithm, ClippedLoss, KlEstimator, LanguageModel, RewardSource
from rlhf_flow.step.operations import GroupAdvantages

class Named(Algorithm):
    def roles(self):
        return {"student": LanguageModel, "start": LanguageModel, "grade": RewardSource}

    def step(self, flow, prompts):
        batch = flow.student.generate(prompts)
        batch |= flow.grade.score(batch) | flow.start.log_probs(batch)
        batch |= flow.compute(batch, GroupAdvantages("grade_scores", "grade_valid"))
        loss = ClippedLoss(
            "grade_valid",
            kl_coefficient=0.1,
            kl_estimator=KlEstimator.K3,
            reference_log_probs="start_log_probs",
        )
        flow.student.train(batch, loss)
"""


def test_roles_of_any_name_start_from_the_model_that_is_warmed_up(
    job: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "named.py").write_text(NAMED)
    monkeypatch.syspath_prepend(tmp_path)
    sections = {
        "algorithm": {"type": "Custom", "custom": {"entrypoint": "named:Named"}},
        "rewards": [{"role": "grade", "function": {"entrypoint": "mine:score"}}],
        "schedule": SMALL_STEP | {"warmStart": {"maxSteps": 2}},
    }
    made = plan(job(**sections), cpus())
    assert made.policy == "student"
    assert {role.role for role in made.roles if role.is_saved} == {"student", "start"}


def test_a_given_cache_and_engine_size_are_obeyed(job: Any) -> None:
    rollout = {"samplesPerPrompt": 2, "kvCacheMemory": "256Mi", "parallelism": {"tensor": 2}}
    made = plan(job(rollout=rollout), cpus(2))
    assert engines_of(made).kv_cache_bytes == GIB // 4
    assert (engines_of(made).mesh.tensor, engines_of(made).mesh.data) == (2, 1)
    generate = made.call(GraphName.STEP, "actor.generate")
    train = made.call(GraphName.STEP, "actor.train")
    assert generate is not None and generate.mesh == Mesh(pool="local", data=1, tensor=2)
    assert train is not None and train.mesh == Mesh(pool="local", data=2)
    assert any("rollout.kvCacheMemory says so" in reason for reason in made.reasons)


def test_no_more_devices_are_taken_than_allowed(job: Any) -> None:
    made = plan(job(placement={"maxDevices": 3}), cpus(8))
    assert made.num_devices == 3


def test_what_does_not_fit_is_refused_with_the_sum(job: Any) -> None:
    with pytest.raises(DoesNotFit) as caught:
        plan(llama(job), gpus(2, gibibytes=24))
    text = str(caught.value)
    assert "got " in text and "allowed 24.00 GiB" in text and "actor.train" in text
    rows = [line.split() for line in text.splitlines() if line.startswith("  ")]
    sizes = {" ".join(row[:-2]): row[-2:] for row in rows}
    assert sizes["actor MasterWeights"] == ["14.96", "GiB"]
    assert sizes["actor Optimizer"] == ["29.92", "GiB"]
    items = [float(value) for name, (value, unit) in sizes.items() if unit == "GiB"]
    total, device = float(sizes["sum"][0]), float(sizes["device"][0])
    small = [float(v) / 1024 for _, (v, unit) in sizes.items() if unit == "MiB"]
    assert sum(items) + sum(small) - total - device == pytest.approx(total, abs=0.1)
    assert "- take 16 devices (2 nodes of 8)" in text
    assert caught.value.reason == "DoesNotFit"
    assert caught.value.exit_code is ExitCode.MANIFEST


def test_a_process_alone_may_be_too_much(job: Any) -> None:
    with pytest.raises(DoesNotFit, match="fewer processes on a machine"):
        plan(job(), cpus(2, gibibytes=0.5))


@pytest.mark.parametrize(
    ("tensor", "devices", "message"),
    [
        (3, gpus(8), "8 devices that generate.*choose 1 or 2 or 4 or 8, or leave"),
        (4, gpus(6, nodes=2), "6 devices per node.*choose 1 or 2, or"),
        (16, gpus(8, nodes=2), "8 devices per node.*choose 1 or 2 or 4 or 8, or"),
        (6, gpus(6), "32 attention heads.*choose 1 or 2, or"),
    ],
)
def test_engine_sizes_that_do_not_divide_are_refused(
    job: Any, tensor: int, devices: Pool, message: str
) -> None:
    rollout = {"samplesPerPrompt": 4, "parallelism": {"tensor": tensor}}
    with pytest.raises(DoesNotDivide, match=message) as refused:
        plan(llama(job, rollout=rollout), devices)
    assert refused.value.location == ("spec", "rollout", "parallelism", "tensor")


def test_an_engine_size_that_does_not_divide_the_padded_vocabulary_is_refused(job: Any) -> None:
    shape = {
        "numLayers": 2, "hiddenSize": 96, "intermediateSize": 96, "numAttentionHeads": 6,
        "numKeyValueHeads": 6, "headDim": 32, "vocabSize": 60,
    }  # fmt: skip
    models = {"actor": {"source": {"path": "/models/six"}, "shape": shape}}
    rollout = {"samplesPerPrompt": 4, "parallelism": {"tensor": 3}}
    with pytest.raises(DoesNotDivide, match="vocabulary of 60, which vLLM pads to 64"):
        make_plan(job(models=models, rollout=rollout), [gpus(3)])


def test_a_cache_below_one_sequence_is_refused(job: Any) -> None:
    rollout = {"samplesPerPrompt": 2, "kvCacheMemory": "1Mi"}
    with pytest.raises(KvCacheTooSmall, match=r"got 1Mi, allowed at least .* MiB"):
        plan(job(rollout=rollout), cpus())


def test_devices_come_from_the_manifest_or_the_machine(job: Any) -> None:
    pools = {"nodePools": [{"name": "a", "gpu": "H100", "nodes": 2}]}
    for asked, devices, expected in [
        (job(resources=pools), None, (Device.GPU, 16)),
        (job(resources=pools), 2, (Device.CPU, 2)),
        (job(), 2, (Device.CPU, 2)),
        (job(), None, (Device.CPU, 1)),
    ]:
        (pool,) = pools_of(asked, devices)
        assert (pool.device, pool.num_devices) == expected


SHAPES = st.builds(
    lambda layers, kv, groups, dim, middle, vocab: {
        "numLayers": layers,
        "hiddenSize": kv * groups * dim,
        "intermediateSize": 64 * middle,
        "numAttentionHeads": kv * groups,
        "numKeyValueHeads": kv,
        "headDim": dim,
        "vocabSize": vocab,
    },
    layers=st.integers(1, 80),
    kv=st.sampled_from([1, 2, 4, 8]),
    groups=st.sampled_from([1, 2, 4, 8]),
    dim=st.sampled_from([32, 64, 128]),
    middle=st.integers(1, 400),
    vocab=st.integers(64, 200_000),
)


@settings(max_examples=examples(100), deadline=None)
@given(
    shape=SHAPES,
    training=st.fixed_dictionaries(
        {"microBatchTokens": st.integers(1, 40_000), "activationRecompute": st.booleans()}
    ),
    rollout=st.fixed_dictionaries(
        {
            "samplesPerPrompt": st.integers(2, 16),
            "maxPromptTokens": st.integers(1, 4096),
            "maxResponseTokens": st.integers(1, 4096),
            "maxConcurrentSequences": st.integers(1, 512),
        }
    ),
    ppo=st.booleans(),
    devices=st.builds(
        pool_of,
        name=st.just("pool"),
        device=st.sampled_from(list(Device)),
        nodes=st.integers(1, 4),
        devices_per_node=st.sampled_from([1, 2, 3, 4, 8]),
        memory_bytes=st.integers(0, 200 * GIB),
    ),
)
def test_a_plan_fits_or_is_refused(
    job: Any, shape: Any, training: Any, rollout: Any, ppo: bool, devices: Pool
) -> None:
    made = job(
        models={"actor": {"source": {"path": "m"}, "shape": shape, "training": training}},
        algorithm={"type": "PPO" if ppo else "GRPO"},
        rollout=rollout,
    )
    try:
        found = plan(made, devices)
    except PlanError as error:
        assert isinstance(error, DoesNotFit), error
        return
    memory, generation = memory_of(found), engines_of(found)
    assert memory.peak_bytes <= memory.capacity_bytes == devices.memory_bytes_per_device
    assert memory.peaks == phase_peaks(memory.items)
    assert generation.mesh.num_devices == devices.num_devices
    assert shape["numAttentionHeads"] % generation.mesh.tensor == 0
    token = 2 * shape["numLayers"] * max(1, shape["numKeyValueHeads"] // generation.mesh.tensor)
    token *= shape["headDim"] * (4 if devices.device is Device.CPU else 2)
    assert generation.kv_cache_bytes >= generation.max_sequence_tokens * token
    cache = [item for item in memory.items if item.what is MemoryUse.KV_CACHE]
    assert [item.bytes for item in cache] == [generation.kv_cache_bytes]


@settings(max_examples=examples(50), deadline=None)
@given(st.integers(1, 60_000), st.integers(1, 60_000))
def test_training_memory_grows_with_the_micro_batch(job: Any, one: int, other: int) -> None:
    def peak(tokens: int) -> int:
        source = {"builtin": "TinyLlama"}
        models = {"actor": {"source": source, "training": {"microBatchTokens": tokens}}}
        made = job(models=models, schedule={"steps": 1, "promptsPerStep": 64})
        return sum(
            item.bytes
            for item in memory_of(plan(made, cpus(1, gibibytes=64))).items
            if item.what in (MemoryUse.ACTIVATIONS, MemoryUse.LOGITS)
        )

    assert peak(min(one, other)) <= peak(max(one, other))


def test_the_planner_takes_shapes_from_its_caller_only(job: Any) -> None:
    made = job(models={"actor": {"source": {"huggingFace": "unknown/model"}}})
    shapes = {"actor": WELL_KNOWN_MODELS["Qwen/Qwen2.5-0.5B"]}
    found = plan_job(made, trace_job(made), (gpus(1),), shapes)
    role = found.role("actor")
    assert role is not None and role.num_parameters == 494_032_768


@pytest.mark.parametrize(
    ("sections", "devices", "copied"),
    [
        ({}, cpus(), {"actor"}),
        ({"checkpoint": {"everySteps": 0}}, cpus(), set()),
        ({}, gpus(), set()),
        (
            {
                "checkpoint": {"everySteps": 0},
                "algorithm": {"type": "GRPO", "grpo": {"klCoefficient": 0.1}},
                "schedule": SMALL_STEP | {"warmStart": {"maxSteps": 2}},
            },
            cpus(),
            {"actor", "reference"},
        ),
    ],
    ids=["every so often", "after the last step", "beside the device", "after the warm start"],
)
def test_copies_for_checkpoints_count_where_they_share_the_devices_memory(
    job: Any, sections: dict[str, Any], devices: Pool, copied: set[str]
) -> None:
    made = plan(job(**sections), devices)
    items = [item for item in memory_of(made).items if item.what is MemoryUse.CHECKPOINT]
    assert {item.role for item in items} == copied
    assert {role.role for role in made.roles if role.is_saved} >= copied
