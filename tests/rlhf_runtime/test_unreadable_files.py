"""What the system says is told as an error of what is read; other errors stay."""

from __future__ import annotations

from pathlib import Path

import pytest

from rlhf_api.errors import RlhfError
from rlhf_runtime.data.errors import DataUnreadable
from rlhf_runtime.models.errors import ModelIncomplete
from rlhf_runtime.unreadable_files import unreadable_as


@pytest.mark.parametrize("kind", [DataUnreadable, ModelIncomplete])
def test_what_the_system_says_is_told_as_the_kind_that_is_asked_for(
    kind: type[RlhfError], tmp_path: Path
) -> None:
    says = rf"^a file cannot be read: got {tmp_path} \(Is a directory\), allowed .*; correct"
    with pytest.raises(kind, match=says) as caught, unreadable_as(kind, "a file", tmp_path):
        tmp_path.open()
    assert isinstance(caught.value.__cause__, IsADirectoryError)


def test_without_words_of_the_system_the_error_is_told() -> None:
    with (
        pytest.raises(DataUnreadable, match=r"got x \(cut off\)"),
        unreadable_as(DataUnreadable, "a file", "x"),
    ):
        raise OSError("cut off")


def test_other_errors_stay() -> None:
    error = ModelIncomplete("not valid JSON")
    with pytest.raises(ModelIncomplete) as caught, unreadable_as(DataUnreadable, "a file", "x"):
        raise error
    assert caught.value is error
