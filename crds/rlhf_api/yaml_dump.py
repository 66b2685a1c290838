"""Writes YAML that every reader reads alike: this package's, kubectl's and PyYAML."""

from __future__ import annotations

from typing import Any

import yaml
from yaml.nodes import ScalarNode

from rlhf_api.reading.yaml_scalars import kubectl_scalar, plain_scalar


class Dumper(yaml.SafeDumper):
    """Writes no aliases, and quotes texts that some reader would take for another type."""

    def ignore_aliases(self, data: Any) -> bool:
        """Write every value out."""
        return True


def _represent_text(dumper: yaml.SafeDumper, text: str) -> ScalarNode:
    # PyYAML quotes what YAML 1.1 would misread, but for y and n. Under YAML 1.2, 1e-6 is a number,
    # and kubectl takes y for true.
    is_text = plain_scalar(text) == kubectl_scalar(text) == text
    style = None if is_text else "'"
    return dumper.represent_scalar("tag:yaml.org,2002:str", text, style=style)


Dumper.add_representer(str, _represent_text)


def dump_yaml(value: Any, **options: Any) -> str:
    """Write a value of plain types; members keep their order.

    Args:
        value: lists, dicts, texts, numbers, booleans and None.
        options: of `yaml.dump`.
    """
    text: str = yaml.dump(value, Dumper=Dumper, sort_keys=False, **options)
    return text
