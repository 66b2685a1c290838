"""The builtin model, written once for all tests."""

from __future__ import annotations

from pathlib import Path

import pytest

from rlhf_runtime.models.tiny_llama import tiny_llama_folder


@pytest.fixture(scope="session")
def tiny_llama(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The builtin model's folder; do not change it."""
    return tiny_llama_folder(0, tmp_path_factory.mktemp("models"))
