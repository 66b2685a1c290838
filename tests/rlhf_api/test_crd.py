"""The CustomResourceDefinition as an object: names, columns, size, and the file."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import yaml

from rlhf_api.api_names import API_VERSION, KIND
from rlhf_api.crd.definition import COLUMNS, crd, crd_yaml

from .admission import root_schema

ORDER = ["Phase", "Step", "Steps", "Reward", "GPUs", "Busy", "Restarts", "Age"]
FILE = Path(__file__).parents[2] / "crds" / "rlhf-operator.dev_rlhfjobs.yaml"


def test_its_names_are_those_of_the_manifest() -> None:
    definition = crd()
    names, (version,) = definition["spec"]["names"], definition["spec"]["versions"]
    assert definition["metadata"]["name"] == f"{names['plural']}.{definition['spec']['group']}"
    assert (names["kind"], names["listKind"]) == (KIND, f"{KIND}List")
    assert f"{definition['spec']['group']}/{version['name']}" == API_VERSION
    assert version["served"] and version["storage"]
    assert version["subresources"] == {"status": {}}


def test_columns_show_fields_that_there_are_as_their_types() -> None:
    assert [title for title, _, _ in COLUMNS] == ORDER
    for _, kind, path in COLUMNS[:-1]:
        node: dict[str, Any] = root_schema()
        for name in path.strip(".").split("."):
            node = node["properties"][name]
        assert node["type"] == kind
    assert COLUMNS[-1][1:] == ("date", ".metadata.creationTimestamp")


def test_a_job_that_nobody_looked_at_says_so() -> None:
    status = root_schema()["properties"]["status"]
    assert status["default"] == {}
    assert status["properties"]["observedGeneration"]["default"] == -1


def test_the_file_is_the_object_and_small_enough_for_an_annotation() -> None:
    assert yaml.safe_load(FILE.read_text("utf-8")) == crd()
    # `kubectl apply` keeps a copy in an annotation, all of which may have 256 KiB together.
    assert len(json.dumps(crd(), separators=(",", ":")).encode()) < 250 * 1024


def test_a_description_is_complete_where_it_comes_first() -> None:
    (version,) = crd()["spec"]["versions"]
    algorithm = version["schema"]["openAPIV3Schema"]["properties"]["spec"]["properties"][
        "algorithm"
    ]
    described = [
        settings["properties"]["lossAggregation"]["description"]
        for settings in algorithm["properties"].values()
        if "lossAggregation" in settings.get("properties", {})
    ]
    assert len(described) > 2 and "Default: TokenMean" in described[0]
    assert set(described[1:]) == {"Aggregation of token losses to one number."}


def test_the_file_has_no_anchors() -> None:
    text = crd_yaml()
    tokens = [*yaml.scan(text)]
    assert not any(isinstance(token, yaml.AnchorToken | yaml.AliasToken) for token in tokens)
