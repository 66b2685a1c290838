"""A profile whose seconds are easy to add up."""

from __future__ import annotations

from rlhf_api.spec.models import Precision
from rlhf_api.spec.resources import Device
from rlhf_planner.problem.profile import (
    BlockCurves,
    BlockShape,
    Constants,
    Curve,
    GenerationCurves,
    Measured,
    ModelProfile,
    PassCurves,
    Profile,
    TrainingCurves,
)

from .simple import SMALL


def line(each: float, always: float = 0.0) -> Curve:
    """So many seconds for each, and some always."""
    return Curve(at=(0, 100), seconds=(always, always + 100 * each))


def passes(factor: float) -> PassCurves:
    """1 for a token and 0.5 for a pair in a block, 10 for a token before and 100 after them."""
    return PassCurves(
        block=BlockCurves(tokens=line(factor), pairs=line(factor / 2)),
        embedding=line(10 * factor),
        head=line(100 * factor),
    )


MODEL = ModelProfile(
    name="actor",
    shape=BlockShape.of(SMALL),
    precision=Precision.FLOAT32,
    training=TrainingCurves(
        forward=passes(1), backward=passes(2), recomputed=passes(3), optimizer=line(7)
    ),
    generation=GenerationCurves(
        prefill=BlockCurves(tokens=line(1), pairs=line(0.5)),
        embedding=line(10),
        sequences=line(2),
        cached=line(0.25),
        step=line(3, always=5),
    ),
)
PROFILE = Profile(
    measured=Measured(device=Device.CPU, name="a core", ranks=2, threads=1, torch="2"),
    constants=Constants(
        memory_bytes_per_second=4.0,
        engine_step_seconds=5.0,
        link_bytes_per_second=2.0,
        collective_seconds=0.5,
    ),
    models=(MODEL,),
)
