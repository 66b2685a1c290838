"""Services are asked once before a start; one that does not answer costs seconds, not the start."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest

from rlhf_api.spec.rewards import RewardSpec
from rlhf_runtime.preflight import service_probe
from rlhf_runtime.preflight.service_probe import probe_services
from rlhf_runtime.preflight.trial_rows import TrialRow

from ...free_port import free_port
from ...scoring_service import scoring_service

ROWS = [
    TrialRow("row 0", "1=", {"kind": "a"}, None, "1"),
    TrialRow("row 1", "2=", {"kind": "b"}, None, "2"),
]


def http(url: str, **settings: Any) -> RewardSpec:
    where = settings.pop("where", None)
    return RewardSpec.model_validate(
        {"name": "remote", "http": {"url": url, **settings}, "where": where}
    )


def test_a_service_is_asked_about_one_reference_answer_of_its_rows() -> None:
    asked: list[Mapping[str, Any]] = []

    def score(sample: Mapping[str, Any]) -> float | None:
        asked.append(sample)
        return None

    with scoring_service(score) as url:
        assert probe_services([http(url, where={"field": "kind", "values": ["b"]})], ROWS) == []
        assert probe_services([http(url, where={"field": "kind", "values": ["c"]})], ROWS) == []
    assert [(sample["prompt"], sample["response"]) for sample in asked] == [("2=", "2")]


def test_services_that_give_no_score_are_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(service_probe, "SECONDS", 1)
    closed = http(f"http://127.0.0.1:{free_port()}/score", onError="Fail", maxRetries=32)
    with scoring_service(lambda sample: "much") as url:
        texts = probe_services([closed, http(url, timeoutSeconds=60)], ROWS)
    assert len(texts) == 2
    assert f"({closed.service.url}) gives no score now (unreachable)" in texts[0]  # type: ignore[union-attr]
    assert "gives no score now (notANumber)" in texts[1] and "got 'much'" in texts[1]
    assert probe_services([closed], []) == [], "no row is known"
