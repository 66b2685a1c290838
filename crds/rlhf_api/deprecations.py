"""Fields of a manifest that go, or will change their meaning: what to write instead, and when."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import date

from rlhf_api.api_names import VERSION
from rlhf_api.spec.job import RLHFJobSpec


@dataclass(frozen=True)
class Deprecation:
    """A field of spec that another one replaces, with the same values."""

    field: str
    """Wire name of the field."""
    instead: str
    """Wire name of the field to write instead."""
    later: str
    """The field's fate in later API versions."""
    until: date
    """The last day on which releases read the field as they do now."""

    @property
    def message(self) -> str:
        """The deprecation in one sentence: fault, fix, date."""
        return (
            f"spec.{self.field} is deprecated: write spec.{self.instead} (`rlhf convert FILE` "
            f"does so); {VERSION} reads it as now at least until {self.until.isoformat()}, and "
            f"later versions {self.later}"
        )


DEPRECATIONS = (
    Deprecation(
        "ttlSecondsAfterFinished",
        "clusterTTLSeconds",
        "delete the job itself after this time, as Kubernetes' Jobs do",
        date(2027, 11, 30),
    ),
)


def deprecations_in(spec: RLHFJobSpec) -> list[Deprecation]:
    """List the deprecated fields that a spec sets to another value than the default."""
    # The API server stores defaults, which nobody has written.
    document = spec.model_dump(mode="json", by_alias=True, exclude_defaults=True)
    return [deprecation for deprecation in DEPRECATIONS if deprecation.field in document]
