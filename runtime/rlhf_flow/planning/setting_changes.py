"""Changes of what a manifest need not say, as the plan would choose it. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from functools import partial
from typing import Any

from rlhf_api.spec.job import RLHFJob
from rlhf_api.spec.models import Offload
from rlhf_flow.planning.changes import Change, Changed, Path, value_at, with_field

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
