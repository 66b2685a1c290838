"""A wish to stop ends a job where there is nothing to save."""

from __future__ import annotations

import pytest

from rlhf_runtime.controller.stop import StopRequest


@pytest.mark.parametrize(("wanted", "worth_waiting"), [(False, False), (False, True), (True, True)])
def test_work_goes_on_without_a_wish_or_with_something_to_save(
    wanted: bool, worth_waiting: bool
) -> None:
    StopRequest(wanted, worth_waiting).raise_if_requested()


def test_nothing_is_waited_for_where_there_is_nothing_to_save() -> None:
    with pytest.raises(KeyboardInterrupt):
        StopRequest(wanted=True).raise_if_requested()
