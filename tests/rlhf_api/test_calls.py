"""Phases are values: what people see of them follows from what they are."""

from __future__ import annotations

import pytest

from rlhf_api.calls import IDLE, CallKind, Phase


def test_people_see_the_role_and_what_it_does() -> None:
    assert str(Phase(role="actor", kind=CallKind.TRAIN)) == "actor.train"
    assert f"{Phase(role='reward_model', kind=CallKind.RESHARD)}" == "reward_model.reshard"
    assert str(IDLE) == "idle"


def test_phases_of_a_role_and_a_kind_are_the_same() -> None:
    phases = [Phase(role=role, kind=kind) for role in ("a", "b") for kind in CallKind] + [IDLE]
    again = [Phase.model_validate_json(phase.model_dump_json()) for phase in phases]
    assert phases == again and len({*phases, *again}) == len(phases) == 2 * len(CallKind) + 1


@pytest.mark.parametrize("half", [{"role": "actor"}, {"kind": "Train"}])
def test_half_a_phase_is_refused(half: dict[str, str]) -> None:
    with pytest.raises(ValueError, match="half a phase"):
        Phase.model_validate(half)
