"""Every benchmark runs from its command line to its line of JSON, in the smallest size."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from math import isfinite, prod

import pytest

from ..heavy_starts import Heavy
from ..runs.cli import standing_by_for_others
from .programs import BENCHMARKS, PROGRAMS, Printed, run_smallest


@pytest.fixture(scope="module")
def standby(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Mapping[str, str]]:
    """Variables with which runs fork workers from one process."""
    # Not for benchmarks that measure starts.
    with standing_by_for_others(tmp_path_factory.mktemp("standby")) as variables:
        yield variables


def assert_positive(numbers: Iterable[float]) -> None:
    """Check that there are numbers, all finite and above 0."""
    values = list(numbers)
    assert values and all(isfinite(value) and value > 0 for value in values), values


def test_every_target_of_the_makefile_is_run_here() -> None:
    makefile = (BENCHMARKS.parent / "Makefile").read_text(encoding="utf-8")
    assert set(re.findall(r"^bench-(\w+):", makefile, re.MULTILINE)) == set(PROGRAMS)
    # Beside the other tests of many jobs, and of the real model.
    elsewhere = {"operator", "fleet", "real"}
    for name in set(PROGRAMS) - elsewhere:
        assert any(test.startswith(f"test_{name}") for test in globals()), name


@pytest.mark.parametrize("name", list(PROGRAMS))
def test_the_text_of_help_names_the_target(name: str) -> None:
    tree = ast.parse((BENCHMARKS / f"{PROGRAMS[name]}.py").read_text(encoding="utf-8"))
    assert f"bench-{name}" in (ast.get_docstring(tree) or "")


@pytest.mark.ray
def test_step_prints_the_phases_of_both_sides(standby: Mapping[str, str]) -> None:
    printed = run_smallest("step", variables=standby, starts={Heavy.RUN: 2, Heavy.ENGINE: 1})
    answer = printed.json("step")
    assert_positive([answer["slow_ratio"]])
    rollouts = printed.rows("median ms of a rollout")
    assert len(rollouts) == 4 and "rollout with a slow verifier, 1 steps: " in printed.text
    assert_positive([answer["ratio"], answer["ours"]["step"], answer["baseline"]["step"]])
    phases = ["transition", "generate", "score", "compute", "train", "rest", "step"]
    assert printed.names("median ms") == phases
    assert printed.rows("median ms")[3][2] == "-", "the plain loop computes nothing apart"
    assert_positive(answer["baseline"][name] for name in ("transition", "generate", "train"))
    assert_positive(answer["ours"][name] for name in ("transition", "generate", "train"))


@pytest.mark.ray
def test_dispatch_prints_ratios_and_how_references_grow() -> None:
    printed = run_smallest("dispatch", starts={Heavy.RAY: 1})
    answer = printed.json("dispatch")
    assert set(answer["ratio"]) == set(printed.names("median ms")) == {"column", "empty"}
    assert_positive(answer["ratio"].values())
    growth = printed.json("dispatch-growth")
    sizes = ["2 actors", "4 simulated"]
    assert printed.names("driver's ms per rank")[:2] == sizes
    assert_positive(
        number for size in sizes for number in growth["milliseconds_per_rank"][size].values()
    )
    assert_positive(growth["bare_milliseconds_per_rank"]["2 actors"].values())
    # A training reads what three calls have written, one shard of either rank.
    assert growth["references_per_rank"]["2 actors"]["train"] == 3 * 2
    assert isfinite(growth["growth_mebibytes"])


@pytest.mark.ray
def test_conversations_prints_turns_and_both_orders() -> None:
    printed = run_smallest("conversations", starts={Heavy.WORLD: 1, Heavy.ENGINE: 1})
    ratios = printed.json("conversations")["ratio"]
    assert list(ratios) == printed.names("seconds") == ["turns", "Exact", "Fastest"]
    assert_positive(ratios.values())


@pytest.mark.ray
def test_startup_prints_phases_alone_with_a_standby_and_of_bare_vllm() -> None:
    printed = run_smallest("startup", starts={Heavy.RUN: 2, Heavy.FORK_SERVER: 1, Heavy.ENGINE: 1})
    answer = printed.json("startup")
    assert_positive([answer["ratio"], answer["standby_ratio"]])
    sequence = ("command", "ray", "libraries", "models and engines", "first generation")
    for side in ("ours", "standby"):
        phases = answer[side]
        assert_positive(phases.values())
        assert phases["total"] == pytest.approx(sum(phases[name] for name in sequence))
    assert set(answer["baseline"]) == {"imports", "engine", "first generation", "total"}
    assert_positive(answer["baseline"].values())
    assert {*sequence, "data", "verifiers", "imports", "engine", "total"} == set(
        printed.names("median seconds")
    )


def assert_recovered(printed: Printed, kinds: Sequence[str]) -> None:
    answer = printed.json("recovery")
    sequence = ("noticed", "libraries", "models and engines", "restored and trained")
    assert printed.names("median seconds") == [*sequence, "total", "cold start"]
    assert list(answer["ratio"]) == list(answer["seconds"]) == kinds
    assert_positive(answer["ratio"].values())
    for phases in answer["seconds"].values():
        assert_positive(phases.values())
        assert phases["total"] == pytest.approx(sum(phases[name] for name in sequence))


@pytest.mark.ray
def test_recovery_prints_the_phases_after_a_kill(standby: Mapping[str, str]) -> None:
    printed = run_smallest("recovery", variables=standby, starts={Heavy.RUN: 1})
    assert_recovered(printed, ["standing by"])


@pytest.mark.ray
@pytest.mark.nightly  # the test above measures one of the two kinds
def test_recovery_compares_with_libraries_that_are_imported_again() -> None:
    kinds = ["standing by", "not"]
    printed = run_smallest("recovery", "--kinds", *kinds, starts={Heavy.RUN: 2})
    assert_recovered(printed, kinds)


@pytest.mark.ray
def test_placement_prints_idle_shares_and_a_timeline_of_either(standby: Mapping[str, str]) -> None:
    printed = run_smallest("placement", variables=standby, starts={Heavy.RUN: 2})
    answer = printed.json("placement")
    assert set(answer["seconds"]) == {"Colocated", "Split"}
    assert_positive([answer["ratio"], *answer["seconds"].values()])
    for name, shares in answer["idle"].items():
        assert list(shares) == ["rank 0", "rank 1"], name
        assert all(0 <= share < 1 for share in shares.values()), shares
    lines = [line for line in printed.text.splitlines() if line.startswith("rank ")]
    assert len(lines) == 4, "two ranks of two placements"
    assert all("T" in line for line in lines), "both train: critic and actor, or both of both"


@pytest.mark.ray
def test_peers_prints_our_part_and_that_the_peer_is_left_out(standby: Mapping[str, str]) -> None:
    printed = run_smallest("peers", "--without-trl", variables=standby, starts={Heavy.RUN: 1})
    assert "TRL is left out" in printed.text
    answer = printed.json("peers")
    assert answer["without_trl"]
    ((name, scenario),) = answer["scenarios"].items()
    (system,) = printed.names(f"{name}, 1 steps")
    ours = scenario["systems"][system]
    assert_positive([ours["step_seconds"], ours["peak_mebibytes"]])
    assert scenario["ratio"] is None and "not checked" in printed.text


@pytest.mark.ray
@pytest.mark.nightly  # the test above runs our side
@pytest.mark.timeout(1200)  # TRL is installed
def test_peers_prints_ratios_to_trl(standby: Mapping[str, str]) -> None:
    names = ["sort", "long"]
    starts = {Heavy.RUN: len(names)}
    printed = run_smallest("peers", "--scenarios", *names, variables=standby, starts=starts)
    scenarios = printed.json("peers")["scenarios"]
    assert list(scenarios) == names
    for scenario in scenarios.values():
        systems = scenario["systems"]
        assert list(systems) == ["TRL", "ours, 1 rank(s)"]
        assert_positive([scenario["ratio"], *(run["step_seconds"] for run in systems.values())])
        for system in systems.values():
            (score,) = system["scores"]
            assert 0 <= score <= 1


@pytest.mark.ray
def test_learning_prints_accuracy_before_and_after(standby: Mapping[str, str]) -> None:
    printed = run_smallest("learning", variables=standby, starts={Heavy.RUN: 1})
    (run,) = printed.json("learning")["runs"]
    assert printed.names("example") == [f"{run['example']} {run['algorithm']}"]
    assert run["passed"] is None
    assert all(0 <= run[name] <= 1 for name in ("first", "last", "best")), run
    assert_positive([run["seconds"]])


@pytest.mark.ray
@pytest.mark.nightly  # the test above runs one example
def test_learning_takes_models_of_earlier_examples(standby: Mapping[str, str]) -> None:
    # PPO from the model of 10 with a reward that 11 has trained from it; a model that was warmed.
    options = ("--examples", "12", "01")
    printed = run_smallest("learning", *options, variables=standby, starts={Heavy.RUN: 4})
    last, first = printed.json("learning")["runs"]
    assert (last["algorithm"], first["algorithm"]) == ("PPO", "GRPO")
    for run in (last, first):
        assert all(isfinite(reward) for reward in run["reward"]), run


@pytest.mark.ray
def test_reshard_moves_the_planned_bytes_in_every_case() -> None:
    printed = run_smallest("reshard", starts={Heavy.WORLD: 1})
    rows = {row["case"]: row for row in printed.json("reshard")["rows"]}
    assert printed.names("model") == ["tiny"] * 3 and printed.text.count("not checked") == 4
    # Of four tensor ranks: a half is 2 quarters, of which each has one; 3 more make it whole.
    # Gathering brings each 3 quarters.
    assert rows["1-4-1 -> 1-2"]["share"] == pytest.approx(1 / 3)
    assert rows["1-4-1 -> 1-1"]["share"] == pytest.approx(1)
    assert 1 / 3 < rows["FSDP 4 -> tp 2"]["share"] < 1
    for row in rows.values():
        assert_positive(value for value in row.values() if isinstance(value, float))


def assert_rank_stages(printed: Printed, stages: Sequence[str]) -> None:
    answer = printed.json("rank")
    assert printed.names("median ms") == stages and not answer["failed"]
    for stage in stages:
        assert_positive(answer[stage][name] for name in ("seconds", "baseline", "ratio"))
    assert answer["equal_seeds_give_equal_tokens"] and answer["equal_seeds_give_equal_log_probs"]
    assert answer["release"]["same_tokens_after"]
    # On a CPU engine and trainer both compute in float32.
    assert answer["log_prob_distance_at_0.7"]["max"] < 1e-4


@pytest.mark.ray
def test_rank_prints_the_stages_of_one_rank() -> None:
    printed = run_smallest("rank", "--without-bare", starts={Heavy.WORLD: 1, Heavy.ENGINE: 1})
    assert_rank_stages(printed, ["transfer", "update"])


@pytest.mark.ray
@pytest.mark.nightly  # the test above runs our side
def test_rank_compares_generation_with_bare_vllm() -> None:
    printed = run_smallest("rank", starts={Heavy.WORLD: 1, Heavy.ENGINE: 2})
    assert_rank_stages(printed, ["transfer", "generation", "update"])


@pytest.mark.ray
def test_estimator_prints_a_ratio_for_every_call_of_every_plan() -> None:
    printed = run_smallest("estimator", starts={Heavy.WORLD: 2, Heavy.ENGINE: 2})
    answer = printed.json("estimator")
    calls = {(row["plan"], row["call"]) for row in answer["rows"]}
    assert len(calls) == len(answer["rows"]) == 6, "two plans of three calls"
    assert sum(call == "generate" for _, call in calls) == 2
    assert answer["reached"] is None and "rank correlation of 2 plans" in printed.text
    for row in answer["rows"]:
        assert_positive(value for value in row.values() if isinstance(value, float))


@pytest.mark.slow
def test_papers_prints_five_tables_and_what_agrees() -> None:
    printed = run_smallest("papers")
    findings = printed.json("papers")["findings"]
    assert set(findings) <= {"agrees", "near", "disagrees"}
    assert sum(findings.values()) == 6, "two of generation, one each of transitions, search, gains"
    assert re.findall(r"^(\d)\. ", printed.text, re.MULTILINE) == list("12345")
    assert len(printed.rows("model", "t")) == 4, "engines of 1, 2, 4 and 8"
    (placements,) = printed.rows("model", "GPUs", "Colocated")
    of_kinds, by_rule, planned = placements[2:5], placements[5:8], placements[8]
    assert of_kinds[2] == "-", "two of three kinds are searched"
    assert_positive(map(float, [*of_kinds[:2], *by_rule, planned]))
    assert len(printed.rows("model", "p-t")) == 5, "numbers of GPUs"
    gains = printed.rows("model", "GPUs", "sequence")
    assert [length for _, _, length, *_ in gains] == ["2048", "8192"]
    assert_positive(float(cell) for gain in gains for cell in gain[3:7])


def test_updates_prints_the_seconds_of_four_methods() -> None:
    printed = run_smallest("updates")
    rows = printed.rows("model", "GPUs", "sequence", "in turn")
    assert [row[:3] for row in rows] == [["7B", "16", "2048"], ["7B", "16", "8192"]]
    saved = printed.rows("model", "GPUs", "sequence", "by fusion")
    for row, shares in zip(rows, saved, strict=True):
        in_turn, on_halves, fused, interleaved, bound = map(float, row[3:])
        assert 0 < bound <= min(in_turn, on_halves, fused, interleaved)
        assert interleaved <= min(in_turn, on_halves), "no chunks are a choice, too"
        assert float(shares[3].rstrip("%")) == pytest.approx(
            100 * (1 - fused / min(in_turn, on_halves)), abs=0.5
        )
    most_saved = printed.json("updates")["most_saved"]
    largest = [max(float(shares[column].rstrip("%")) for shares in saved) for column in (3, 4)]
    assert largest == pytest.approx([100 * share for share in most_saved.values()], abs=0.051)
    cuts = printed.rows("model", "GPUs", "sequence", "in turn: p-t-d")
    sizes = [[prod(map(int, cut.split("-"))) for cut in row[3:6]] for row in cuts]
    assert sizes == [[16, 8, 16]] * 2, "GPUs of a role"


def test_readings_prints_both_figures_and_counts_of_ratios() -> None:
    printed = run_smallest("readings")
    ratios = printed.json("readings")["ratios"]
    assert_positive(ratios.values())
    rows = printed.rows("reading", "parameter")
    assert [name for name, *_ in rows] == list(ratios), "steps of engines"
    assert {unit for *_, unit, _ in rows} == {"ms"}
    assert [name for name, *_ in printed.rows("part", "readings")] == ["all", "held out"]
