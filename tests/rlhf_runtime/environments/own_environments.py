"""Environments of a user's own, in a module that only the conversations' processes import."""

from __future__ import annotations

import textwrap
from pathlib import Path

# The first three do what examples of TRL's documentation for `environment_factory` do.
ENVIRONMENTS = '''
    import asyncio, os, random, signal, socket, subprocess, sys, time
    from pathlib import Path

    from rlhf_runtime.environments import side_effects

    class IncrementEnv:
        """Counts; returns numbers, takes no columns and has no reward."""
        def __init__(self):
            self._counter = 0

        def reset(self) -> None:
            self._counter = 0

        def increment(self, a: int) -> int:
            """
            Increase the counter.

            Args:
                a: The number that is added

            Returns:
                The counter.
            """
            self._counter += a
            return self._counter

    class WordleEnv:
        """Keeps its reward in an attribute, and raises after the game."""
        WORDS = ("crane", "slate")

        def reset(self, **kwargs) -> str | None:
            self._word = self.WORDS[kwargs.get("number", 0)]
            self.reward = 0.0
            self.done = False
            return "Guess a word of five letters."

        def guess(self, guess: str) -> str:
            """
            Guess the word.

            Args:
                guess: The word, such as '[abcde]'

            Returns:
                One letter for each of the word: G, Y or X.
            """
            if self.done:
                raise ValueError("Game over.")
            word = guess.strip("[]")
            if word == self._word:
                self.reward, self.done = 1.0, True
            pairs = zip(word, self._word)
            return "".join("G" if a == b else "Y" if a in self._word else "X" for a, b in pairs)

    class CalculatorEnv:
        """Several typed tools, and a reward that TRL calls get_reward."""
        def __init__(self):
            self._last = None

        def reset(self, answer=None, **kwargs):
            self._answer = answer

        def calculate(self, operation: str, numbers: list[float]) -> str:
            """Compute a sum or a product.

            Args:
                operation: Either "sum" or "product".
                numbers: At least
                    one number.
            """
            result = 1.0 if operation == "product" else 0.0
            for number in numbers:
                result = result * number if operation == "product" else result + number
            self._last = result
            return f"{result:g}"

        def get_reward(self) -> float:
            return float(self._last == self._answer)

    class Hostile:
        """Tools that do what models make tools do."""
        def add(self, a: float, b: float) -> str:
            """Add."""
            return f"{a + b:g}"

        def hang(self) -> str:
            """Never return."""
            time.sleep(3600)

        def die(self) -> str:
            """End the process."""
            print("about to die")
            os._exit(7)

        def crash(self) -> str:
            """Crash."""
            os.kill(os.getpid(), signal.SIGSEGV)

        def leave(self) -> str:
            """Call sys.exit."""
            sys.exit(3)

        def raise_it(self) -> str:
            """Raise."""
            raise ValueError("not so")

        def flood(self) -> str:
            """Print 10 MB."""
            for number in range(100):
                print(number, "x" * 100_000)
            return "done"

        def close_descriptors(self) -> str:
            """Close all descriptors."""
            os.closerange(0, 256)
            return "done"

        def large(self) -> str:
            """Return 10 MB."""
            return "a" + "b" * 10_000_000 + "c"

        def surrogates(self) -> str:
            """Return a text that cannot be written as UTF-8."""
            return "a\\udcffb"

        def octets(self) -> str:
            """Return bytes."""
            return b"\\xff"

        def nothing(self) -> str:
            """Return nothing."""

        def table(self) -> str:
            """Return a table."""
            return {"a": [1, 2.5, None]}

        def fork_on(self) -> str:
            """Fork a child that returns, too."""
            return "parent" if os.fork() else "child"

        def keep_connection(self, path: str) -> str:
            """Hang, with a child that keeps the connection; at the second time answer."""
            if Path(path).exists():
                return "again"
            Path(path).write_text(str(os.getppid()))
            if os.fork() == 0:
                os.setsid()
                while Path(path).exists():
                    time.sleep(0.02)
                os._exit(0)
            time.sleep(3600)

        def leave_programs(self, path: str) -> str:
            """Start programs, one of them in a session of its own."""
            for new in (False, True):
                program = subprocess.Popen(["sleep", "3600"], start_new_session=new)
                with open(path, "a") as file:
                    print(program.pid, file=file)
            return "started"

        def leave_programs_and_die(self, path: str) -> str:
            """Start programs, and end."""
            self.leave_programs(path)
            os._exit(1)

        def allocate(self, size: int) -> str:
            """Take memory."""
            return str(len(bytearray(size)))

        def read_input(self) -> str:
            """Read a line of the standard input."""
            return repr(sys.stdin.readline())

        def variables(self) -> list:
            """Names of variables."""
            return sorted(os.environ)

        def libraries(self) -> list:
            """Names of modules."""
            return sorted(sys.modules)

        def write(self) -> str:
            """Write to the working folder."""
            Path("note.txt").write_text("x")
            return str(Path("note.txt").absolute())

        def connect(self, port: int) -> str:
            """Connect to this machine."""
            with socket.create_connection(("127.0.0.1", port), timeout=1):
                return "connected"

        def forge(self, text: str) -> str:
            """Write to all sockets."""
            for number in range(3, 64):
                try:
                    if os.readlink(f"/proc/self/fd/{number}").startswith("socket"):
                        os.write(number, text.encode("latin-1"))
                except OSError:
                    pass
            return "forged"

        def process(self) -> int:
            """Number of the process."""
            return os.getpid()

    class Later:
        """Async methods, between which the process keeps its loop."""
        def __init__(self, *, most: int = 0):
            self._running, self._most, self._order = 0, most, []

        async def reset(self, **row):
            await asyncio.sleep(0)
            return "later"

        async def meet(self, others: int) -> str:
            """Wait until some calls run at once."""
            self._running += 1
            self._most = max(self._most, self._running)
            while self._most < others:
                await asyncio.sleep(0)
            self._running -= 1
            self._order.append("meet")
            return str(self._most)

        async def raise_later(self) -> str:
            """Raise."""
            raise KeyError("later")

        async def hang_later(self) -> str:
            """Never return."""
            await asyncio.sleep(3600)

        def now(self) -> str:
            """Return the order of calls."""
            self._order.append("now")
            return " ".join(self._order)

        async def turn_reward(self) -> float:
            return float(len(self._order))

        async def reward(self) -> dict[str, float]:
            return {"most": self._most, "length": len(self._order)}

    class Wrong:
        """Returns what its row says where something else belongs."""
        def reset(self, observation=None, **row):
            self._row = row
            if observation == "raise":
                self._fail()
            return observation

        def _fail(self):
            raise ValueError("my own mistake")

        def act(self) -> str:
            """Act."""
            return "acted"

        def turn_reward(self):
            return self._row.get("turn", 1.0)

        def reward(self):
            if self._row.get("reward") == "raise":
                self._fail()
            if self._row.get("reward") == "hang":
                time.sleep(3600)
            return self._row.get("reward")

    class Needs:
        def reset(self, question: str):
            return question

        def act(self) -> str:
            """Act."""
            return "acted"

    class Drawer:
        """State that grows, random numbers, and effects outside."""
        def __init__(self, folder: str = "", salt: str = ""):
            self._folder, self._salt, self._numbers = Path(folder), salt, []

        def reset(self, **row):
            self._numbers = [random.random()]
            return f"{self._salt}{self._numbers[0]}"

        def draw(self, count: int) -> str:
            """Draw numbers."""
            self._numbers += [random.random() for _ in range(count)]
            return f"{self._salt}{sum(self._numbers)} {sorted({str(one) for one in range(9)})}"

        async def wait(self) -> str:
            """Draw a number later."""
            await asyncio.sleep(0)
            return self.draw(1)

        def refuse(self) -> str:
            """Raise."""
            raise ValueError(str(len(self._numbers)))

        @side_effects
        def note(self, text: str) -> str:
            """Write to a file."""
            with (self._folder / "notes").open("a") as file:
                print(text, file=file)
            return (self._folder / "notes").read_text()

        def break_once(self) -> str:
            """End the process or its server, or hang, but only once."""
            self.draw(1)
            victim = self._folder / "victim"
            if victim.exists():
                name = victim.read_text()
                victim.rename(self._folder / "broken")
                if name != "owner":
                    os.kill({"process": os.getpid(), "server": os.getppid()}[name], signal.SIGKILL)
                time.sleep(3600)
            return self.draw(1)

        def die_until(self, count: int) -> str:
            """End the process until it has been asked that often."""
            with (self._folder / "asked").open("a") as file:
                print(file=file)
            if len((self._folder / "asked").read_text()) < count:
                os._exit(1)
            return "lives"

        def turn_reward(self) -> float:
            return self._numbers[-1]

        def reward(self) -> float:
            return sum(self._numbers)

    class Saved(Drawer):
        """The same with snapshots."""
        def snapshot(self):
            return {"numbers": self._numbers}

        def restore(self, snapshot):
            self._numbers = snapshot["numbers"]

    class Bytes(Drawer):
        def snapshot(self) -> bytes:
            return repr(self._numbers).encode()

        def restore(self, snapshot: bytes) -> None:
            self._numbers = eval(snapshot.decode())

    class Unstable:
        """Answers otherwise in every process."""
        def act(self) -> str:
            """Return the number of the process."""
            return str(os.getpid())

        def reward(self) -> float:
            return 1.0

    class Moody(Unstable):
        """Observes otherwise in every process."""
        def reset(self):
            return str(os.getpid())

    class Lucky(Drawer):
        """Rewards that are drawn, after as many other numbers as calls have drawn."""
        def turn_reward(self) -> float:
            reward, *_ = [random.random() for _ in self._numbers]
            return reward

        def reward(self) -> float:
            return random.random()

    def shout(text: str) -> str:
        """Make a text loud."""
        return text.upper()

    def guess(text: str) -> str:
        """Share a name with a method."""
        return text
'''


def write_module(folder: Path) -> None:
    """Write the module `my_environments`."""
    (folder / "my_environments.py").write_text(textwrap.dedent(ENVIRONMENTS))
