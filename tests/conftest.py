"""Fixtures of several packages, and settings that fit tests to any machine."""

from __future__ import annotations

import os

import pytest

from .cluster.definition import defined
from .cluster.session import in_ci, kubeconfig, kubectl, namespace
from .depth import add_options, choose_depth, select
from .side_by_side import SideBySide, num_processes
from .suites import SuiteBudgets, check_marks

# Before anything imports torch. Two processes share the cores, and small tensors take many times as
# long where threads wait for each other. Ranks set their own number.
os.environ.setdefault("OMP_NUM_THREADS", "1")

pytest_plugins = ("pytester",)
__all__ = ["defined", "kubeconfig", "kubectl", "namespace"]


def pytest_addoption(parser: pytest.Parser) -> None:
    add_options(parser)


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_auto_num_workers(config: pytest.Config) -> int:
    """Number of processes under `-n auto`."""
    # `make test` says auto.
    return num_processes(config)


@pytest.hookimpl(trylast=True)  # when there is a reporter
def pytest_configure(config: pytest.Config) -> None:
    choose_depth(config)
    config.pluginmanager.register(SuiteBudgets(in_ci(), config.option.nightly))
    if config.getoption("dist", "no") != "no":
        config.pluginmanager.register(SideBySide(config))


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    check_marks(items)
    select(config, items)
