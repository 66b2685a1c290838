"""What a preflight says of models that are valid and probably not meant."""

from __future__ import annotations

import json
from pathlib import Path

from rlhf_api.reading.manifest import load_file
from rlhf_runtime.models.tiny_llama import tiny_llama_folder
from rlhf_runtime.preflight.findings import Findings
from rlhf_runtime.preflight.models import ModelUse, check_models

EXAMPLE = Path(__file__).parents[3] / "examples" / "01-sort-grpo.yaml"


def warnings_of(folder: Path, generating: tuple[str, ...]) -> list[str]:
    (job,) = load_file(EXAMPLE, [f"spec.models.actor.source={{path: {folder}}}"])
    findings = Findings()
    check_models(job.spec, ModelUse(("actor",), generating), folder, True, findings)
    return findings.warnings


def test_a_response_that_would_end_at_an_ordinary_word_is_a_warning(tmp_path: Path) -> None:
    folder = tiny_llama_folder(0, tmp_path)
    assert warnings_of(folder, ("actor",)) == []
    token = json.loads((folder / "tokenizer.json").read_text())["model"]["vocab"]["7"]
    (folder / "generation_config.json").write_text(json.dumps({"eos_token_id": token}))
    (warning,) = warnings_of(folder, ("actor",))
    assert f"generation_config.json names token {token} as an end, which is '7'" in warning
    assert warnings_of(folder, ()) == [], "it generates nothing"
