"""Changes of a manifest and of its devices, and their application. Pure.

advice.py tries which of them are enough.
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
from rlhf_planner.memory.role_model import GIB
from rlhf_planner.problem.devices import GPU_MEMORY_BYTES

# Names of fields, indices and keys, starting at a job.
Path = tuple[str | int, ...]


@dataclass(frozen=True)
class Changed:
    """A job, and its devices before placement.maxDevices."""

    job: RLHFJob
    devices: tuple[Pool, ...]


@dataclass(frozen=True)
class Change:
    """A field or setting to change, with values that need less and less memory."""

    values: Sequence[Any]
    """Values, mildest first."""
    apply: Callable[[Changed, Any], Changed]
    text: Callable[[Any], str]
    """The change as an order, for people."""


def smaller_number(name: str, path: Path, job: RLHFJob, min_value: int) -> Change:
    """A change to a smaller number than the manifest's."""
    return Change(
        range(value_at(job, path) - 1, min_value - 1, -1),
        partial(with_field, path=path),
        lambda value: f"lower {name} to at most {value}",
    )


def with_field(changed: Changed, new: Any, path: Path) -> Changed:
    """Set another value of a field."""
    # The manifest's rules are not checked again: all values that changes have obey them.
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
    # Models have fields as attributes; mappings and tuples have keys and indices.
    return getattr(value, str(name)) if hasattr(value, "model_copy") else value[name]


# Settings of `training` that may restrict the plan: name in the manifest, name in code, default.
_CHOICES: Sequence[tuple[str, str, Any]] = (
    ("activationRecompute", "activation_recompute", None),
    ("offload", "offload", Offload.AUTO),
    ("distributedOptimizer", "distributed_optimizer", True),
)


def setting_changes(current: Changed) -> list[Change]:
    """Changes of optional settings, one by one."""
    return [
        *(
            change
            for entry in _entries(current.job)
            for change in _of_training(current.job, [entry])
        ),
        *_without(_free_fields(current.job)),
    ]


def joint_changes(current: Changed) -> list[Change]:
    """Changes of optional settings of several models, the same for all."""
    return _of_training(current.job, list(_entries(current.job)))


def left_to_the_plan(current: Changed) -> list[Change]:
    """Removal of all optional settings."""
    job, trainings = current.job, list(_entries(current.job))
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
    """True if a setting of a training may need more memory than its default."""
    value = getattr(training, field, default)
    # Settings that force recomputation, offloading or sharding save memory, so they restrict
    # nothing.
    return value != default and value is not True and value is not Offload.ALWAYS


def _of_training(job: RLHFJob, entries: Sequence[tuple[str, Path]]) -> list[Change]:
    """Changes of all given trainings, for settings that each of them has."""
    tokens_by_path = {path: value_at(job, path).micro_batch_tokens for _, path in entries}
    changes = []
    # A change of several trainings needs the setting in each of them.
    if all(tokens is not None and tokens > 1 for tokens in tokens_by_path.values()):
        names = ", ".join(f"{name}.microBatchTokens" for name, _ in entries)

        def lower(changed: Changed, limit: int) -> Changed:
            for path, tokens in tokens_by_path.items():
                changed = with_field(
                    changed, min(tokens, limit), path=(*path, "micro_batch_tokens")
                )
            return changed

        changes.append(
            Change(
                range(max(tokens_by_path.values()) - 1, 0, -1),
                lower,
                lambda limit: f"lower {names} to at most {limit}",
            )
        )
    for shown, field, default in _CHOICES:
        paths = [
            (f"{name}.{shown}", (*path, field), default)
            for name, path in entries
            if _restricts(value_at(job, path), field, default)
        ]
        if len(paths) == len(entries):
            changes.append(_together(_without(paths)))
    return changes


def _free_fields(job: RLHFJob) -> list[tuple[str, Path, Any]]:
    """Optional settings outside of models: name, path and default."""
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
    """Removal of settings, each as a change of its own."""
    return [
        Change([default], partial(with_field, path=path), partial(_leave_out, name=name))
        for name, path, default in fields
    ]


def _leave_out(_: Any, name: str) -> str:
    return f"leave out {name}"


def _together(changes: Sequence[Change]) -> Change:
    """Several changes of one value each, as one."""

    def apply(changed: Changed, _: Any) -> Changed:
        for change in changes:
            changed = change.apply(changed, change.values[0])
        return changed

    texts = [change.text(change.values[0]) for change in changes]
    return Change(changes[0].values, apply, lambda _: "; and ".join(texts))


def _entries(job: RLHFJob) -> Iterator[tuple[str, Path]]:
    """The training sections of a manifest: name for people, and path."""
    for role in job.spec.models:
        yield f"models.{role}.training", ("spec", "models", role, "training")
    for number, reward in enumerate(job.spec.rewards):
        if reward.model is not None:
            yield f"rewards[{number}].model", ("spec", "rewards", number, "model")


# Pools are enlarged to at most this number of devices.
MAX_DEVICES = 1024
# Limit of the memory per process that advice names.
MAX_GIB = 4096


def device_changes(current: Changed) -> list[Change]:
    """More devices: for each pool, for several together, and those that placement.maxDevices
    excludes."""
    job, devices = current.job, current.devices
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
    """All pools enlarged to the same number of devices."""
    sizes = [change.values for change in grown]
    # Ascending by devices, so that the first size that fits is the smallest.
    common = sorted(set(sizes[0]).intersection(*sizes[1:]), key=lambda size: size[0] * size[1])

    def apply(changed: Changed, size: Any) -> Changed:
        for change in grown:
            changed = change.apply(changed, size)
        return changed

    return Change(common, apply, lambda size: "; and ".join(change.text(size) for change in grown))


def memory_change(current: Changed) -> Change:
    """Devices with more memory; in GiB. For GPUs the supported ones."""
    smallest_bytes = min(pool.memory_bytes_per_device for pool in current.devices)
    on_cpus = current.devices[0].device is Device.CPU
    largest_gib = MAX_GIB if on_cpus else max(GPU_MEMORY_BYTES.values()) // GIB

    def apply(changed: Changed, gib: int) -> Changed:
        pools = tuple(
            pool.model_copy(
                # Pools whose devices have more memory keep them.
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
        names = [name for name, size in GPU_MEMORY_BYTES.items() if size >= gib * GIB]
        return f"take devices with at least {gib} GiB ({', '.join(names)})"

    return Change(range(smallest_bytes // GIB + 1, largest_gib + 1), apply, text)


def _larger(pool: Pool, job: RLHFJob) -> list[tuple[int, int]]:
    """Nodes and devices per node of ever larger pools; none for a machine's CPUs."""
    # Processes on CPUs share the memory of their machine: more of them have less each.
    if pool.device is Device.CPU and not job.spec.resources.node_pools:
        return []
    nodes, per_node = pool.nodes, pool.devices_per_node
    sizes = []
    # A single node grows up to eight devices; then nodes of that size are added.
    if nodes == 1:
        sizes = [(1, more) for more in (2, 4, 8) if more > per_node]
        per_node = max(per_node, 8)
    sizes += [(more, per_node) for more in range(nodes + 1, MAX_DEVICES // per_node + 1)]
    # Only numbers of devices that full copies of the models divide.
    multiple = lcm(*(model.training.parallelism.num_ranks for model in job.spec.models.values()))
    return [(n, count) for n, count in sizes if n * count % multiple == 0]


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
