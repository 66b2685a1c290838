"""A folder with environments of a user's own."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

from rlhf_runtime.data.character_tokenizer import write_tokenizer

from .own_environments import MODULE


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with code of one's own, on the path, and with a tokenizer."""
    (tmp_path / "tools.py").write_text(MODULE)
    (tmp_path / "broken.py").write_text("raise RuntimeError('No CUDA GPUs are available')\n")
    (tmp_path / "ending.py").write_text("import os; os._exit(3)\n")
    write_tokenizer(tmp_path)
    rows = [{"prompt": "1+1=", "answer": "2", "environment": "calc"}] * 4
    (tmp_path / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    monkeypatch.setattr(sys, "path", [str(tmp_path), *sys.path])
    return tmp_path
