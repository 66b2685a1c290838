"""Requests and limits of containers under Kubernetes' names."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Annotated, ClassVar

from pydantic import Field

from rlhf_api.base import Contract, LabelKey
from rlhf_api.problems import FieldPath
from rlhf_api.quantity import Quantity, quantity_amount
from rlhf_api.rules import Rule, Violation

# Amounts by name: cpu, memory, ephemeral-storage, hugepages-2Mi, rdma/hca.
Amounts = Annotated[dict[LabelKey, Quantity], Field(max_length=32)]

STANDARD = ("cpu", "memory", "ephemeral-storage")
HUGE_PAGES = "hugepages-"


def is_countable(name: str) -> bool:
    """True if Kubernetes gives out the resource in whole numbers, as devices are."""
    return "/" in name


def _names_are_resources(resources: ContainerResources) -> Iterator[Violation]:
    for section, name, _ in _entries(resources):
        is_standard = name in STANDARD or name.startswith(HUGE_PAGES)
        if not is_standard and (not is_countable(name) or name.startswith("requests.")):
            yield Violation(name, (section, name))


def _devices_are_whole(resources: ContainerResources) -> Iterator[Violation]:
    for section, name, amount in _entries(resources):
        if is_countable(name) and quantity_amount(amount).denominator != 1:
            yield Violation(amount, (section, name))


def _entries(resources: ContainerResources) -> Iterator[tuple[str, str, str]]:
    for section in ("requests", "limits"):
        for name, amount in getattr(resources, section).items():
            yield section, name, amount


class ContainerResources(Contract):
    """Requests and limits of a container, such as {limits: {rdma/hca: 1}}."""

    requests: Amounts = {}
    """Requested amounts. Default: the limits."""
    limits: Amounts = {}
    """Largest amounts."""

    validations: ClassVar = (
        Rule(
            holds="",
            what="a resource that Kubernetes does not have",
            allowed="cpu, memory, ephemeral-storage, hugepages-SIZE or a name with a domain, such "
            "as rdma/hca",
            do="correct it",
            check=_names_are_resources,
        ),
        Rule(
            holds="",
            what="a part of a device",
            allowed="an integer",
            do="round it up",
            check=_devices_are_whole,
        ),
    )


def amount_conflicts(
    requests: Mapping[str, str], limits: Mapping[str, str]
) -> Iterator[tuple[FieldPath, str, str]]:
    """Yield requests that Kubernetes refuses beside the limits: path, value, what is allowed."""
    for name, amount in requests.items():
        limit = limits.get(name)
        # Devices and huge pages cannot be shared, so Kubernetes wants equal amounts.
        is_exclusive = is_countable(name) or name.startswith(HUGE_PAGES)
        if is_exclusive and (limit is None or quantity_amount(limit) != quantity_amount(amount)):
            yield ("requests", name), amount, f"the limit, {limit or 'which is missing'}"
        elif limit is not None and quantity_amount(amount) > quantity_amount(limit):
            yield ("requests", name), amount, f"at most the limit, {limit}"
