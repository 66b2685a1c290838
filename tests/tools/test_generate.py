"""Generated files are up to date, and the check reports differences."""

from __future__ import annotations

import importlib.util
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import jsonschema
import pytest
import yaml

ROOT = Path(__file__).parents[2]
SCRIPT = ROOT / "tools" / "generate.py"
MANIFESTS = ROOT / "tests" / "rlhf_api" / "manifests"


@pytest.fixture(scope="module")
def generate() -> ModuleType:
    spec = importlib.util.spec_from_file_location("generate", SCRIPT)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_generated_files_are_up_to_date() -> None:
    command = [sys.executable, str(SCRIPT), "--check"]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr


def test_a_changed_or_missing_file_is_noticed(
    generate: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(generate, "ROOT", tmp_path)
    assert generate.outdated() == [*generate.FILES]
    for name, make in generate.FILES.items():
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(make())
    assert generate.outdated() == []
    (tmp_path / "docs/reference/rlhfjob.md").write_text("edited")
    assert generate.outdated() == ["docs/reference/rlhfjob.md"]


@pytest.mark.parametrize("name", ["smallest.yaml", "full.yaml"])
def test_the_editor_schema_accepts_what_the_loader_accepts(generate: ModuleType, name: str) -> None:
    document = yaml.safe_load((MANIFESTS / name).read_text().replace("1e-5", "1.0e-5"))
    schema = generate.editor_schema()
    jsonschema.Draft202012Validator.check_schema(schema)
    jsonschema.validate(document, schema)


@pytest.mark.parametrize(
    "change",
    [
        {"spec": {}},
        {"kind": "Pod"},
        {"metadata": {"name": "Sort"}},
        {"metadata": {"name": "sort", "uid": "x"}},
    ],
)
def test_the_editor_schema_refuses_what_the_loader_refuses(
    generate: ModuleType, change: dict[str, object]
) -> None:
    document = yaml.safe_load((MANIFESTS / "smallest.yaml").read_text()) | change
    with pytest.raises(jsonschema.ValidationError):
        jsonschema.validate(document, generate.editor_schema())


def test_the_reference_names_all_fields_and_every_exit_code(generate: ModuleType) -> None:
    text = generate.reference()
    for field in generate.all_fields(generate.contract()):
        assert f"| `{field.name}` |" in text
    assert "| 130 | INTERRUPTED |" in generate.exit_codes()
