"""Write the files that derive from the contract's models, or check that they are up to date.

python tools/generate.py           writes the files
python tools/generate.py --check   exits 1 and names each file that differs
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path

import algorithm_table
import chart_files
import versions
from rlhf_api.api_names import API_VERSION, KIND
from rlhf_api.crd.definition import crd_yaml
from rlhf_api.crd.editor_schema import editor_schema
from rlhf_api.enum_members import member_docstrings
from rlhf_api.exits import ExitCode
from rlhf_api.reading.explain import default_text
from rlhf_api.reading.fields import FieldDoc, all_fields, contract
from rlhf_api.spec.pod.template import PodTemplate

ROOT = Path(__file__).resolve().parent.parent


def reference() -> str:
    """Reference of the manifest as Markdown: one section per object."""
    lines = [
        f"# {KIND}",
        "",
        f"The fields of `{API_VERSION}`. Made from the models by `make generate`; "
        "`rlhf explain PATH` shows the same.",
        "",
        "Names in angle brackets are chosen by the user (`spec.models.<name>` is a role), `[]` is "
        "an entry of a list. Unknown fields are refused.",
    ]
    pods: list[str] = []
    for node in [contract(), *all_fields(contract())]:
        if any(_is_below(node.path, pod) for pod in pods[1:]):
            continue  # the fields of all pods are the same
        if node.type_name == PodTemplate.__name__:
            pods.append(node.path)
        if len(pods) > 1 and node.path == pods[-1]:
            fields = f"The fields are those of `{pods[0]}`."
            lines += ["", f"## `{node.path}`", "", node.description, "", fields]
        elif node.object_fields:
            lines += ["", *_section(node)]
    return "\n".join(lines) + "\n"


def _is_below(path: str, parent: str) -> bool:
    return path.startswith((f"{parent}.", f"{parent}["))


def _section(node: FieldDoc) -> list[str]:
    title = _described_path(node) or KIND
    about = node.description if node.description else node.type_description
    rows = [_row(child) for child in node.object_fields]
    members = [line for child in node.object_fields for line in _member_list(child)]
    header = ["| field | type | default | allowed | meaning |", "|---|---|---|---|---|"]
    return [f"## `{title}`", "", about, "", *header, *rows, *members]


def _described_path(node: FieldDoc) -> str:
    """Path of a field's object: spec.rewards[], spec.models.<name>."""
    # Lists and maps: the section describes their elements.
    return _described_path(node.element) if node.element else node.path


def _row(field: FieldDoc) -> str:
    default = "**required**" if field.required else f"`{default_text(field)}`"
    cells = (
        f"`{field.name}`",
        f"`{field.type_name}`",
        default if default != "``" else "",
        field.allowed,
        field.description,
    )
    return "| " + " | ".join(_escaped(cell) for cell in cells) + " |"


def _escaped(cell: str) -> str:
    return cell.replace("|", "\\|")


def _member_list(field: FieldDoc) -> list[str]:
    if not any(member.description for member in field.members):
        return []
    items = [f"- `{member.value}`: {member.description}" for member in field.members]
    return ["", f"`{field.name}`:", "", *items]


def exit_codes() -> str:
    """Table of exit codes as Markdown."""
    docs = member_docstrings(ExitCode)
    rows = [f"| {code.value} | {code.name} | {docs[code.name]} |" for code in ExitCode]
    head = ["# Exit codes", "", "Of the driver and of every `rlhf` command.", ""]
    return "\n".join([*head, "| code | name | meaning |", "|---|---|---|", *rows]) + "\n"


def schema() -> str:
    """JSON schema of a manifest."""
    return json.dumps(editor_schema(), indent=2, ensure_ascii=False) + "\n"


CHART = "charts/rlhf-operator"
FILES: dict[str, Callable[[], str]] = {
    f"{CHART}/README.md": chart_files.readme,
    f"{CHART}/files/rlhfjobs.yaml": chart_files.chart_crd,
    f"{CHART}/templates/_permissions.tpl": chart_files.permissions_template,
    f"{CHART}/values.schema.json": chart_files.values_schema,
    f"{CHART}/values.yaml": chart_files.values_yaml,
    "crds/rlhf-operator.dev_rlhfjobs.yaml": crd_yaml,
    "crds/rlhfjob.schema.json": schema,
    "docs/reference/algorithms.md": algorithm_table.algorithms,
    "docs/reference/exit-codes.md": exit_codes,
    "docs/reference/rlhfjob.md": reference,
    **{
        name: partial(versions.with_version, name)
        for name in (versions.CHART_FILE, *versions.TAGGED)
    },
}
"""Generated files: functions that return the text, by path in the repository."""


def outdated() -> list[str]:
    """Paths of files that differ from the generated text, or are missing."""
    return [
        name
        for name, make in FILES.items()
        if not (ROOT / name).is_file() or (ROOT / name).read_text("utf-8") != make()
    ]


def main() -> int:
    """Write or check the files; returns the exit code."""
    parser = argparse.ArgumentParser(description="Write what is derived from the models.")
    parser.add_argument("--check", action="store_true", help="change nothing, fail on a difference")
    check: bool = parser.parse_args().check
    # Before any file is written: one of them may be read for another.
    differing = outdated()
    for name in differing:
        if not check:
            (ROOT / name).parent.mkdir(parents=True, exist_ok=True)
            (ROOT / name).write_text(FILES[name](), "utf-8")
        print(f"{name}: {'differs; run `make generate`' if check else 'written'}")
    return 1 if check and differing else 0


if __name__ == "__main__":
    sys.exit(main())
