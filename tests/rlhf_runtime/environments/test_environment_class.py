"""Classes of the user's, examined."""

from __future__ import annotations

import textwrap
from collections.abc import Callable
from itertools import count
from pathlib import Path
from typing import Any

import pytest

from rlhf_runtime.environments.environment_class import (
    CannotUse,
    Environment,
    load_environments,
)
from rlhf_runtime.environments.settings import (
    ClassFacts,
    EnvironmentDescription,
    EnvironmentSettings,
    ToolFacts,
)

from .conftest import LIMITS

# Modules stay imported, so every test has its own.
NUMBERS = count()

Load = Callable[..., dict[str, Environment]]


@pytest.fixture
def load(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Load:
    """Loads the environments of a module's text."""
    monkeypatch.syspath_prepend(str(tmp_path))

    def make(
        text: str, *classes: str, tools: tuple[str, ...] = (), **parameters: Any
    ) -> dict[str, Environment]:
        name = f"examined_{next(NUMBERS)}"
        (tmp_path / f"{name}.py").write_text(textwrap.dedent(text))
        entrypoints = {kind: f"{name}:{kind}" for kind in classes}
        functions = tuple(f"{name}:{tool}" for tool in tools)
        return load_environments(EnvironmentSettings(entrypoints, parameters, functions, **LIMITS))

    return make


GAME = '''
    from typing import TypedDict
    from rlhf_runtime.environments import side_effects

    class Parts(TypedDict):
        speed: float
        score: float

    class Base:
        def first(self) -> str:
            """First."""

    class Game(Base):
        size = 3

        def __init__(self, *, digits: int = 3): ...

        def reset(self, **row): ...

        def _hidden(self, a): ...

        @side_effects
        def second(self, a: int) -> str:
            """Second."""

        @staticmethod
        def third(a: int) -> str:
            """Third."""

        @classmethod
        def fourth(cls, a: int) -> str:
            """Fourth."""

        @property
        def fifth(self) -> str: ...

        async def sixth(self) -> str:
            """Sixth."""

        def reward(self) -> Parts: ...
        def turn_reward(self) -> float: ...
        def snapshot(self): ...
        def restore(self, snapshot): ...

    def helper(a: int) -> str:
        """Help."""
'''


def test_public_methods_are_tools_and_the_runtimes_own_are_not(load: Load) -> None:
    facts = load(GAME, "Game", tools=("helper",), digits=4)["Game"].facts
    assert list(facts.tools) == ["first", "second", "third", "fourth", "sixth", "helper"]
    repeated = {name for name, tool in facts.tools.items() if tool.repeats}
    assert repeated == {"first", "third", "fourth", "sixth"}
    parameters = facts.tools["third"].schema["function"]["parameters"]
    assert list(parameters["properties"]) == ["a"]
    assert facts.has_reset and facts.has_reward and facts.has_turn_reward and facts.has_snapshot
    assert facts.part_names == ("speed", "score")


RENAMED = '''
    from functools import cache, wraps

    def loud(method):
        def louder(self, text: str) -> str:
            """Say it loud."""
            return method(self, text).upper()
        return louder

    def counted(method):
        @wraps(method)
        def wrapper(*args, **kwargs):
            return method(*args, **kwargs)
        return wrapper

    class Talker:
        @loud
        def say(self, text: str) -> str:
            """Say."""
            return text

        @counted
        def ask(self, text: str) -> str:
            """Ask."""
            return f"{text}?"

        @cache
        def look_up(self, text: str) -> str:
            """Look up."""
            return text

        tell = ask

    def shout(text: str) -> str:
        """Shout."""
        return text.upper()

    helper = shout
'''


def test_a_tool_is_called_by_the_name_under_which_it_is_found(load: Load) -> None:
    environment = load(RENAMED, "Talker", tools=("helper",))["Talker"]
    talker = environment.kind() if environment.kind else None
    names = ["say", "ask", "look_up", "tell"]
    assert list(environment.methods) == names
    for name, tool in environment.methods.items():
        assert tool.name == tool.schema["function"]["name"] == name
    said = [
        getattr(talker, name)(**environment.methods[name].convert({"text": "a"})) for name in names
    ]
    assert said == ["A", "a?", "a", "a?"]
    assert list(environment.facts.tools) == [*names, "helper"]


def test_functions_need_no_class(load: Load) -> None:
    facts = load(GAME, tools=("helper",))[""].facts
    assert list(facts.tools) == ["helper"]
    assert not (facts.has_reset or facts.has_reward or facts.has_snapshot)


@pytest.mark.parametrize(
    ("line", "has_reward"),
    [
        ("def reward(self): return 1.0", True),
        ("def get_reward(self): return 1.0", True),
        ("def reset(self): self.reward = 0.0", True),
        ("reward = 0.0", True),
        ("def reset(self): print(self.reward)", False),
    ],
)
def test_a_reward_is_a_method_or_an_attribute(load: Load, line: str, has_reward: bool) -> None:
    text = f'''
    class Game:
        {line}
        def act(self) -> str:
            """Act."""
    '''
    assert load(text, "Game")["Game"].facts.has_reward is has_reward


CLASSES = '''
    import abc

    class Good:
        def act(self) -> str:
            """Act."""

    class NoDocstring:
        def act(self) -> str: ...

    class NoTools:
        def reset(self): ...

    class HalfSaved(Good):
        def snapshot(self): ...

    class Abstract(Good, abc.ABC):
        @abc.abstractmethod
        def _act(self): ...

    class Needy(Good):
        def __init__(self, size): ...

    def act() -> str:
        """Act, too."""

    number = 3
'''


@pytest.mark.parametrize(
    ("classes", "settings", "problem"),
    [
        (["NoDocstring"], {}, "method NoDocstring.act has no description.*begin its name with _"),
        (["NoTools"], {}, "examined_[0-9]+:NoTools has no tools"),
        (["Abstract"], {}, "Abstract is abstract: got no implementation of _act"),
        (["HalfSaved"], {}, "HalfSaved has only one of snapshot and restore: got snapshot"),
        (["Needy"], {}, r"Needy does not take its parameters: missing.*'size'; got Needy\(size\)"),
        (["Good"], {"size": 1}, "Good does not take its parameters.*'size'"),
        (["Good"], {"tools": ("act",)}, "a tool and a method have one name: got act in"),
        ([], {"tools": ("act", "act")}, "two tools have one name: got act twice"),
        ([], {"tools": ("Good",)}, "not a function: got examined_[0-9]+:Good of type type"),
        (["act"], {}, "not a class: got examined_[0-9]+:act of type function"),
        (["number"], {}, "not a class"),
        (
            ["Missing"],
            {},
            "no such name in the module: got Missing, allowed Abstract, Good, HalfSaved",
        ),
        ([], {}, "has no tools"),
    ],
)
def test_what_cannot_be_used_is_refused_by_name(
    load: Load, classes: list[str], settings: dict[str, Any], problem: str
) -> None:
    with pytest.raises(CannotUse, match=problem):
        load(CLASSES, *classes, **settings)


@pytest.mark.parametrize(
    ("entrypoint", "problem"),
    [
        ("no_such_module:Game", "no such module: got no_such_module.*bring the code"),
        ("./games/chess.py:Game", "did you mean games.chess:Game?"),
    ],
)
def test_a_missing_module_is_named(entrypoint: str, problem: str) -> None:
    with pytest.raises(CannotUse, match=problem):
        load_environments(EnvironmentSettings({"": entrypoint}, **LIMITS))


@pytest.mark.parametrize("statement", ["1 / 0", "import sys; sys.exit(3)"])
def test_a_module_that_raises_is_refused_with_its_traceback(load: Load, statement: str) -> None:
    with pytest.raises(CannotUse, match=r"cannot be imported: got examined_(?s:.*)line 2"):
        load(f"\n    {statement}", "Game")


def test_a_row_names_its_environment_where_there_are_several() -> None:
    tool = ToolFacts({"type": "function"}, repeats=True)
    one, two = ClassFacts({"a": tool}), ClassFacts({"b": tool}, part_names=("x",))
    single, several = (
        EnvironmentDescription({"one": one}),
        EnvironmentDescription({"one": one, "two": two}, ("a notice",)),
    )
    assert single.environment_of({}) == "one"
    assert several.environment_of({"environment": "two"}) == "two"
    assert several.environment_of({"environment": "three"}) is None
    assert several.environment_of({}) is None
    assert several.tool_schemas("two") == ({"type": "function"},)
    assert EnvironmentDescription.from_json(several.to_json()) == several
