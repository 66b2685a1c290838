"""A wish to stop ends a job where there is nothing to save."""

from __future__ import annotations

import pytest

from rlhf_runtime.controller.stop import StopRequest


@pytest.mark.parametrize(
    ("requested", "has_state_to_save"), [(False, False), (False, True), (True, True)]
)
def test_work_goes_on_without_a_wish_or_with_something_to_save(
    requested: bool, has_state_to_save: bool
) -> None:
    StopRequest(requested, has_state_to_save).raise_if_requested()


def test_nothing_is_waited_for_where_there_is_nothing_to_save() -> None:
    with pytest.raises(KeyboardInterrupt):
        StopRequest(requested=True).raise_if_requested()
