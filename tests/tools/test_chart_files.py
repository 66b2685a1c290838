"""Generated files of the chart agree with the models."""

from __future__ import annotations

import json
import re

import jsonschema
import pytest
import yaml

import chart_files
from chart_values import ChartValues
from rlhf_api.reading.fields import all_fields, field_tree
from rlhf_operator import permissions


def test_the_defaults_are_those_of_the_models() -> None:
    values = yaml.safe_load(chart_files.values_yaml())
    assert ChartValues.model_validate(values) == ChartValues()
    schema = json.loads(chart_files.values_schema())
    jsonschema.Draft7Validator.check_schema(schema)
    jsonschema.Draft7Validator(schema).validate(values)


@pytest.mark.parametrize(
    "wrong",
    [
        {"imag": {}},
        {"image": {"pullPolicy": "Sometimes"}},
        {"jobDefaults": {"storage": {"uri": "bucket"}}},
        {"jobDefaults": {"nodePools": [{"name": "a", "gpus": 8}]}},
        {"networkPolicy": {"apiServer": {"ports": [0]}}},
    ],
)
def test_schema_and_models_refuse_the_same(wrong: dict[str, object]) -> None:
    schema = json.loads(chart_files.values_schema())
    assert not jsonschema.Draft7Validator(schema).is_valid(wrong)
    with pytest.raises(ValueError):
        ChartValues.model_validate(wrong)


def test_every_value_is_explained_above_it_and_in_the_table() -> None:
    text, table = chart_files.values_yaml(), chart_files.readme()
    explained = {
        field.path for field in all_fields(field_tree(ChartValues)) if not field.description
    }
    assert explained == set()
    for name in yaml.safe_load(text):
        assert re.search(rf"^# .+\n{name}:", text, re.MULTILINE), name
        assert f"| `{name}" in table


def test_a_right_stands_in_the_template_with_its_reason() -> None:
    template = chart_files.permissions_template()
    rights = (*permissions.WATCHED, *permissions.OWN)
    for right in rights:
        assert f"# {right.why}\n- apiGroups: [{json.dumps(right.group)}]\n" in template
    named = [right for right in rights if right.named]
    assert template.count("resourceNames: ") == len(named)


def test_the_definition_is_kept_by_helm() -> None:
    definition = yaml.safe_load(chart_files.chart_crd())
    assert definition["metadata"]["annotations"] == {"helm.sh/resource-policy": "keep"}
