"""No file says where it was written, or which package index its author used."""

from __future__ import annotations

import re

from .tracked_files import shown, tracked_files

# Written so that no pattern matches its own text.
FORBIDDEN = {
    "a path of one machine": re.compile(r"(?<![\w.])/(?:root|work)(?:/|\b)"),
    "a package registry": re.compile(
        r"pypi[.]org|pythonhosted[.]org|registry[.]npmjs|proxy[.]golang|crates[.]io"
        r"|repo1?[.]maven|deb[.]debian|download[.]pytorch"
    ),
    "an index of packages": re.compile(r"--(?:extra-)?index-url[= ]\S*http"),
}


def test_no_file_names_a_machine_or_a_registry() -> None:
    found = []
    for path in tracked_files():
        try:
            text = path.read_text(encoding="utf-8")
        except UnicodeDecodeError:
            continue
        for what, pattern in FORBIDDEN.items():
            found += [
                f"{shown(path)}:{number}: {what}: {line.strip()[:100]}"
                for number, line in enumerate(text.splitlines(), 1)
                if pattern.search(line)
            ]
    assert not found, "\n".join(found)


def test_there_are_files_to_look_at() -> None:
    names = {shown(path) for path in tracked_files()}
    assert {"README.md", "pyproject.toml", "runtime/rlhf_cli/app.py"} <= names
