"""Random planning problems, cheap to make: the graphs of a few jobs are traced once, and sizes,
devices, lengths, settings and placements are drawn anew for each."""

from __future__ import annotations

from dataclasses import replace
from functools import cache
from random import Random
from typing import Any

from rlhf_api.plan import ModelHead, Pool
from rlhf_api.spec.models import Offload, TrainingEngineType
from rlhf_api.spec.placement import PlacementSpec, PlacementType, RoleCalls, RoleGroup
from rlhf_api.spec.resources import Device
from rlhf_flow.jobs.job_graphs import trace_job
from rlhf_planner.plan import resolve_shapes
from rlhf_planner.problem.from_manifest import problem_of
from rlhf_planner.problem.problem import FixedStrategy, PlanningProblem, RoleSpec, Workload
from rlhf_sizing.shape import DecoderShape

from ..conftest import make_job

GIB = 2**30
PPO = {"type": "PPO", "ppo": {"klCoefficient": 0.05}}
COST = {"name": "harm", "role": "cost", "function": {"entrypoint": "verifiers:exact"}}
REWARD_MODEL = {"name": "r", "model": {"huggingFace": "Qwen/Qwen2.5-0.5B"}}
VERIFIER = {"name": "v", "function": {"entrypoint": "verifiers:exact"}}
PAIRS = {"data": {"train": {"builtin": "SortDigits", "preferences": {}}}, "rewards": []}
HELD_OUT = {"train": {"path": "train.jsonl"}, "evaluation": {"path": "test.jsonl"}}
JOBS: tuple[dict[str, Any], ...] = (
    {},
    {"algorithm": {"type": "GRPO", "grpo": {"klCoefficient": 0.1}}},
    {"algorithm": {"type": "DAPO"}},
    {"algorithm": {"type": "ReMax"}},
    {"algorithm": {"type": "RLOO"}, "data": HELD_OUT},
    {"algorithm": {"type": "OnlineDPO"}},
    {"algorithm": {"type": "DPO"}, **PAIRS},
    {"algorithm": {"type": "SFT"}, "data": {"train": {"builtin": "SortDigits"}}, "rewards": []},
    {"algorithm": PPO},
    {"algorithm": PPO, "rewards": [REWARD_MODEL, VERIFIER]},
    {"algorithm": {"type": "SafeRLHF"}, "rewards": [VERIFIER, COST]},
)
SHAPES = (
    DecoderShape(4, 512, 1536, 8, 4, 64, 4096, tied_embeddings=True, family="qwen2", qkv_bias=True),
    DecoderShape(6, 768, 3072, 12, 12, 64, 32000, family="llama"),
    DecoderShape(28, 1536, 8960, 12, 2, 128, 151936, tied_embeddings=True, family="qwen2"),
    DecoderShape(36, 2560, 9728, 32, 8, 128, 151936, query_key_norm=True, family="qwen3"),
    DecoderShape(32, 4096, 14336, 32, 8, 128, 128256, family="llama"),
    DecoderShape(40, 5120, 13824, 40, 40, 128, 32000, family="llama"),
    DecoderShape(80, 8192, 28672, 64, 8, 128, 32000, family="llama"),
)
"""From a few million parameters to 70 billion."""


SEVERAL_POOLS = (PlacementType.AUTO, PlacementType.MANUAL)


@cache
def _traced(number: int, device: Device) -> PlanningProblem:
    job = make_job(**JOBS[number])
    graphs = trace_job(job, device)
    return problem_of(job, graphs, (_pool(Random(0), "a", device),), resolve_shapes(job, graphs))


def random_problem(random: Random) -> PlanningProblem:
    """A problem; most of them have plans, some must be refused. Where placements are compared most
    pools are small, so that there are few."""
    device = random.choices([Device.GPU, Device.CPU], [9, 1])[0]
    traced = _traced(random.randrange(len(JOBS)), device)
    kind = random.choice(_kinds(traced))
    is_compared = kind is PlacementType.AUTO and random.random() < 0.95
    names = ("a", "b") if random.random() < 0.15 and kind in SEVERAL_POOLS else ("a",)
    most_devices = (4 if len(names) == 1 else 2) if is_compared else 16
    pools = tuple(_pool(random, name, device, most_devices) for name in names)
    shapes = (
        random.sample(SHAPES[: random.choice([3, 5, 7])], 2)
        if device is Device.GPU
        else [SHAPES[0], SHAPES[1]]
    )
    models = {role: _facts(random, facts, shapes) for role, facts in traced.models.items()}
    placement = _placement(random, kind, list(models), pools)
    return replace(
        traced,
        pools=pools,
        models=models,
        workload=_workload(random, traced.workload),
        fixed=replace(
            traced.fixed,
            placement=placement,
            engine_tensor=random.choices([None, 1, 2, 4], [16, 1, 1, 1])[0],
        ),
    )


def _kinds(problem: PlanningProblem) -> list[PlacementType]:
    """Placements that roles can have."""
    kinds = [PlacementType.AUTO, PlacementType.COLOCATED]
    if len(problem.models) > 1:
        kinds += [PlacementType.AUTO, PlacementType.STANDALONE]
        kinds += [PlacementType.MANUAL] * 3
    if any(facts.head is ModelHead.SCALAR for facts in problem.models.values()):
        kinds.append(PlacementType.SPLIT)
    return kinds


def _pool(random: Random, name: str, device: Device, most_devices: int = 16) -> Pool:
    sizes = [1, 2, 3, 4, 6, 8, 12] if device is Device.GPU else [1, 2, 4]
    per_node = random.choice([size for size in sizes if size <= most_devices])
    nodes = random.choice([1, 1, 1, 2, 3, 4])
    gibibytes = random.choice([24, 48, 80, 80, 141, 192] if device is Device.GPU else [8, 32])
    return Pool(
        name=name,
        device=device,
        nodes=max(1, min(nodes, most_devices // per_node)),
        devices_per_node=per_node,
        memory_bytes_per_device=gibibytes * GIB,
        gpu=random.choice(["H100", "A100-80G", "L40S"]) if device is Device.GPU else None,
    )


def _facts(random: Random, facts: RoleSpec, shapes: list[DecoderShape]) -> RoleSpec:
    engines = list(TrainingEngineType)
    sizes = [None, None, 1, 2]
    is_cut = random.random() < 0.1
    return replace(
        facts,
        shape=shapes[0] if random.random() < 0.8 else shapes[1],
        engine=(engine := random.choice(engines)),
        distributed_optimizer=random.random() < 0.8,
        sequence_parallel=random.random() < 0.5,
        fixed=FixedStrategy(
            tensor=random.choice(sizes) if is_cut and engine is engines[-1] else None,
            pipeline=random.choice(sizes) if is_cut and engine is engines[-1] else None,
            micro_batch_tokens=random.choice([None, None, None, 1024, 8192]),
            recompute=random.choice([None, None, False, True]) if facts.is_trained else None,
            offload=random.choice([Offload.AUTO, Offload.AUTO, *Offload]),
        ),
    )


def _workload(random: Random, workload: Workload) -> Workload:
    prompt, response = (random.choice([64, 512, 1000, 2048, 8192]) for _ in range(2))
    return replace(
        workload,
        prompts_per_step=random.choice([1, 8, 64, 100, 1024]),
        max_prompt_tokens=prompt,
        max_response_tokens=response,
        expected_prompt_tokens=prompt * random.uniform(0.1, 1.0),
        expected_response_tokens=response * random.uniform(0.1, 1.0),
        max_concurrent_sequences=random.choice([16, 64, 256]),
    )


def _placement(
    random: Random, kind: PlacementType, roles: list[str], pools: tuple[Pool, ...]
) -> PlacementSpec:
    if kind is not PlacementType.MANUAL:
        return PlacementSpec(type=kind)
    number = random.randint(len(pools), max(len(pools), min(3, len(roles))))
    where = [n if n < number else random.randrange(number) for n, _ in enumerate(roles)]
    groups = [
        _group(
            random,
            tuple(r for r, at in zip(roles, where, strict=True) if at == n),
            pools[n % len(pools)],
        )
        for n in range(number)
    ]
    if random.random() < 0.3:
        pool = next(pool for pool in pools if pool.name == groups[0].pool)
        groups.append(_group(random, tuple(roles[:1]), pool, (RoleCalls.GENERATE,)))
    return PlacementSpec(type=kind, groups=tuple(groups))


def _group(
    random: Random, roles: tuple[str, ...], pool: Pool, calls: tuple[RoleCalls, ...] = ()
) -> RoleGroup:
    """Some devices, from the pool's first or from its middle."""
    half = pool.num_devices // 2
    first, devices = random.choice([(0, None), (0, None), (0, half or None), (half, None)])
    return RoleGroup(roles=roles, calls=calls, pool=pool.name, first_device=first, devices=devices)
