"""Changes of a manifest and of its devices: what they are, and how a field gets another value.
Pure; whether one is enough is tried elsewhere.

Changes of what a manifest need not say, as the plan would choose it. Pure.

More devices, or such with more memory. Pure.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from math import lcm
from typing import Any

from rlhf_api.plan import Pool
from rlhf_api.spec.job import RLHFJob
from rlhf_api.spec.models import Offload
from rlhf_api.spec.resources import Device
from rlhf_planner.memory.items import GIB
from rlhf_planner.problem.devices import GPU_MEMORY_BYTES

Path = tuple[str | int, ...]
"""Names of fields, numbers of entries and keys, from a job on."""


@dataclass(frozen=True)
class Changed:
    """A job, and its devices before placement.maxDevices takes fewer."""

    job: RLHFJob
    devices: tuple[Pool, ...]


@dataclass(frozen=True)
class Change:
    """Something that may be changed, more or less, to take memory off devices."""

    values: Sequence[Any]
    """The mildest first."""
    apply: Callable[[Changed, Any], Changed]
    text: Callable[[Any], str]
    """The order to change it, for people."""


def smaller_number(name: str, path: Path, job: RLHFJob, least: int) -> Change:
    """A smaller number than the manifest's."""
    return Change(
        range(value_at(job, path) - 1, least - 1, -1),
        partial(with_field, path=path),
        lambda value: f"lower {name} to at most {value}",
    )


def with_field(changed: Changed, new: Any, path: Path) -> Changed:
    """With another value of a field. Rules of the manifest are not applied: values obey them."""
    return Changed(_replaced(changed.job, path, new), changed.devices)


def _replaced(value: Any, path: Path, new: Any) -> Any:
    if not path:
        return new
    name, *rest = path
    inner = _replaced(_step(value, name), tuple(rest), new)
    if isinstance(value, Mapping):
        return {**value, name: inner}
    if isinstance(value, tuple):
        return (*value[: int(name)], inner, *value[int(name) + 1 :])
    return value.model_copy(update={str(name): inner})


def value_at(job: RLHFJob, path: Path) -> Any:
    """The value of a field."""
    value: Any = job
    for name in path:
        value = _step(value, name)
    return value


def _step(value: Any, name: str | int) -> Any:
    return getattr(value, str(name)) if hasattr(value, "model_copy") else value[name]


_CHOICES: Sequence[tuple[str, str, Any]] = (
    ("activationRecompute", "activation_recompute", None),
    ("offload", "offload", Offload.AUTO),
    ("distributedOptimizer", "distributed_optimizer", True),
)
"""Settings of a training that may forbid the plan something: for people, in code, and by
default."""


def setting_changes(asked: Changed) -> list[Change]:
    """Changes of what a manifest need not say, one by one."""
    return [
        *(change for entry in _entries(asked.job) for change in _of_training(asked.job, [entry])),
        *_without(_free_fields(asked.job)),
    ]


def joint_changes(asked: Changed) -> list[Change]:
    """Changes of what it need not say of several models, the same of all."""
    return _of_training(asked.job, list(_entries(asked.job)))


def left_to_the_plan(asked: Changed) -> list[Change]:
    """All that it need not say, left out."""
    job, trainings = asked.job, list(_entries(asked.job))
    fields = [
        (f"{name}.{shown}", (*path, field), default)
        for name, path in trainings
        for shown, field, default in (("microBatchTokens", "micro_batch_tokens", None), *_CHOICES)
        if _restricts(value_at(job, path), field, default)
    ]
    if job.spec.placement.max_devices is not None:
        limit: Path = ("spec", "placement", "max_devices")
        fields.append(("placement.maxDevices", limit, None))
    return _without([*fields, *_free_fields(job)])


def _restricts(training: Any, field: str, default: Any) -> bool:
    """Whether a setting of a training takes more memory than its default may."""
    given = getattr(training, field, default)
    return given != default and given is not True and given is not Offload.ALWAYS


def _of_training(job: RLHFJob, entries: Sequence[tuple[str, Path]]) -> list[Change]:
    """Changes of how all of some models are trained, as far as each says something about it."""
    given = {path: value_at(job, path).micro_batch_tokens for _, path in entries}
    found = []
    if all(tokens is not None and tokens > 1 for tokens in given.values()):
        names = ", ".join(f"{name}.microBatchTokens" for name, _ in entries)

        def lower(changed: Changed, most: int) -> Changed:
            for path, tokens in given.items():
                changed = with_field(changed, min(tokens, most), path=(*path, "micro_batch_tokens"))
            return changed

        found.append(
            Change(
                range(max(given.values()) - 1, 0, -1),
                lower,
                lambda most: f"lower {names} to at most {most}",
            )
        )
    for shown, field, default in _CHOICES:
        paths = [
            (f"{name}.{shown}", (*path, field), default)
            for name, path in entries
            if _restricts(value_at(job, path), field, default)
        ]
        if len(paths) == len(entries):
            found.append(_together(_without(paths)))
    return found


def _free_fields(job: RLHFJob) -> list[tuple[str, Path, Any]]:
    """Settings outside of models that the plan would choose: name, place, and default."""
    fields: list[tuple[str, Path, Any]] = []
    if job.spec.rollout.kv_cache_memory is not None:
        path: Path = ("spec", "rollout", "kv_cache_memory")
        fields.append(("rollout.kvCacheMemory", path, None))
    if job.spec.rollout.parallelism.tensor is not None:
        path = ("spec", "rollout", "parallelism", "tensor")
        fields.append(("rollout.parallelism.tensor", path, None))
    if job.spec.failure_policy.standby:
        path = ("spec", "failure_policy", "standby")
        fields.append(("failurePolicy.standby", path, None))
    return fields


def _without(fields: Iterable[tuple[str, Path, Any]]) -> list[Change]:
    """Settings left out, each a change of its own."""
    return [
        Change([default], partial(with_field, path=path), partial(_leave_out, name=name))
        for name, path, default in fields
    ]


def _leave_out(_: Any, name: str) -> str:
    return f"leave out {name}"


def _together(changes: Sequence[Change]) -> Change:
    """Several changes of one value each."""

    def apply(changed: Changed, _: Any) -> Changed:
        for change in changes:
            changed = change.apply(changed, change.values[0])
        return changed

    texts = [change.text(change.values[0]) for change in changes]
    return Change(changes[0].values, apply, lambda _: "; and ".join(texts))


def _entries(job: RLHFJob) -> Iterator[tuple[str, Path]]:
    """What says how models are trained: its name for people, and where it is."""
    for role in job.spec.models:
        yield f"models.{role}.training", ("spec", "models", role, "training")
    for number, reward in enumerate(job.spec.rewards):
        if reward.model is not None:
            yield f"rewards[{number}].model", ("spec", "rewards", number, "model")


MOST_DEVICES = 1024
"""Up to which more of them are tried."""
MOST_GIB = 4096
"""Memory of a device up to which more is tried."""


def device_changes(asked: Changed) -> list[Change]:
    """More devices: for each pool, for several together, and those that placement.maxDevices leaves
    out."""
    job, devices = asked.job, asked.devices
    limit = job.spec.placement.max_devices
    if limit is not None:
        total = max(pool.num_devices for pool in devices)
        path: Path = ("spec", "placement", "max_devices")
        raised = Change(
            range(limit + 1, total + 1),
            partial(with_field, path=path),
            lambda count: f"raise placement.maxDevices to {count}",
        )
        return [raised]
    named = len(devices) > 1
    grown = [
        Change(
            _larger(pool, job),
            partial(_grow, number=number),
            partial(_devices_text, pool=pool.name if named else ""),
        )
        for number, pool in enumerate(devices)
    ]
    return [*grown, _all_pools(grown)] if named else grown


def _all_pools(grown: Sequence[Change]) -> Change:
    """All pools made larger, to the same number of devices."""
    sizes = [change.values for change in grown]
    common = sorted(set(sizes[0]).intersection(*sizes[1:]), key=lambda size: size[0] * size[1])

    def apply(changed: Changed, size: Any) -> Changed:
        for change in grown:
            changed = change.apply(changed, size)
        return changed

    return Change(common, apply, lambda size: "; and ".join(change.text(size) for change in grown))


def memory_change(asked: Changed) -> Change:
    """Devices with more memory; in GiB. Of GPUs those that are known here."""
    least = min(pool.memory_bytes_per_device for pool in asked.devices)
    on_cpus = asked.devices[0].device is Device.CPU
    most = MOST_GIB if on_cpus else max(GPU_MEMORY_BYTES.values()) // GIB

    def apply(changed: Changed, gib: int) -> Changed:
        pools = tuple(
            pool.model_copy(
                update={"memory_bytes_per_device": max(pool.memory_bytes_per_device, gib * GIB)}
            )
            for pool in changed.devices
        )
        return Changed(changed.job, pools)

    def text(gib: int) -> str:
        if on_cpus:
            return (
                f"give each process at least {gib} GiB: fewer processes on a machine, or a machine "
                "with more memory"
            )
        known = [name for name, size in GPU_MEMORY_BYTES.items() if size >= gib * GIB]
        return f"take devices with at least {gib} GiB ({', '.join(known)})"

    return Change(range(least // GIB + 1, most + 1), apply, text)


def _larger(pool: Pool, job: RLHFJob) -> list[tuple[int, int]]:
    """Nodes and devices of each, in larger and larger pools that hold whole copies of the models;
    a machine's CPUs are not more."""
    if pool.device is Device.CPU and not job.spec.resources.node_pools:
        return []
    nodes, per_node = pool.nodes, pool.devices_per_node
    sizes = []
    if nodes == 1:
        sizes = [(1, more) for more in (2, 4, 8) if more > per_node]
        per_node = max(per_node, 8)
    sizes += [(more, per_node) for more in range(nodes + 1, MOST_DEVICES // per_node + 1)]
    multiple = lcm(*(model.training.parallelism.num_ranks for model in job.spec.models.values()))
    return [(n, each) for n, each in sizes if n * each % multiple == 0]


def _grow(changed: Changed, size: tuple[int, int], number: int) -> Changed:
    nodes, per_node = size
    devices = list(changed.devices)
    grown = {"nodes": nodes, "devices_per_node": per_node}
    devices[number] = devices[number].model_copy(update=grown)
    return Changed(changed.job, tuple(devices))


def _devices_text(size: tuple[int, int], pool: str) -> str:
    nodes, per_node = size
    where = f"{nodes} nodes of {per_node}" if nodes > 1 else "on one node"
    return f"take {nodes * per_node} devices{pool and f' in pool {pool}'} ({where})"
