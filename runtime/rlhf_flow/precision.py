"""In which number format a role computes."""

from __future__ import annotations

from rlhf_api.spec.models import Precision
from rlhf_api.spec.resources import Device


def resolve_precision(precision: Precision, device: Device) -> Precision:
    """float32 or bfloat16: what `auto` means on a device."""
    if precision is not Precision.AUTO:
        return precision
    return Precision.BFLOAT16 if device is Device.GPU else Precision.FLOAT32
