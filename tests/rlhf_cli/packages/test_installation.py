"""Packages of code.requirements, installed by the real pip from a folder of wheels."""

from __future__ import annotations

import errno
import fcntl
import io
import os
import re
import subprocess
import sys
import tarfile
import tempfile
import textwrap
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from rlhf_api.errors import ManifestError
from rlhf_api.exits import ExitCode
from rlhf_api.spec.cluster import CodeSpec
from rlhf_cli.packages import installation, pip
from rlhf_cli.packages.installation import SETS_LOCK, UNFINISHED, PackageStore, cache_folder
from rlhf_cli.packages.lock import LOCK_FILE, PackageLock, keep_lock, read_lock
from rlhf_runtime.errors import FolderUnusable, PackageIndexUnreachable, RequirementsFailed
from rlhf_runtime.hooks import Hook

from .fake_pip import FakePip
from .wheels import Index, lock_of

pytestmark = pytest.mark.slow

Stores = Callable[..., PackageStore]
WORDS = ("tiny-words>=1",)


def needs_no_pip(*arguments: object) -> None:
    raise AssertionError("pip is not needed")


def test_what_is_missing_is_installed_once_and_a_resumed_run_keeps_it(
    index: Index,
    store: Stores,
    said: list[str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    letters = index.add("tiny_letters", "1.2")
    words = index.add("tiny_words", "1.0", ["tiny_letters>=1", "pydantic"])
    first = store().packages_for(WORDS)
    assert first.names == ("tiny-letters==1.2", "tiny-words==1.0"), "nothing that is installed"
    assert (Path(first.folder) / "tiny_words.py").is_file()
    assert said[0] == "resolving code.requirements: tiny-words>=1"
    assert re.fullmatch(r"installed 2 packages of code\.requirements in \d+\.\d s", said[1])
    expected = lock_of(WORDS, ("tiny-letters", "1.2", letters), ("tiny-words", "1.0", words))
    assert read_lock(Path(first.folder)) == expected and first.digest == expected.digest

    run = tmp_path / "run"
    run.mkdir()
    keep_lock(run, CodeSpec(requirements=WORDS), first)
    index.add("tiny_words", "2.0")
    with monkeypatch.context() as patch:
        patch.setattr(installation, "run_pip", needs_no_pip)
        patch.setattr(installation, "resolve", needs_no_pip)
        assert store(run).packages_for(WORDS) == first, "from the lock, and from the folder of sets"
    assert len(said) == 2, "nothing is done, so nothing is said"


def test_a_lost_folder_is_made_again_from_the_lock_and_another_file_is_refused(
    index: Index, store: Stores, tmp_path: Path
) -> None:
    wheel = index.add("tiny_words", "1.0")
    index.add("tiny_words", "2.0")
    lock = lock_of(WORDS, ("tiny-words", "1.0", wheel))
    (tmp_path / LOCK_FILE).write_text(lock.model_dump_json())
    packages = store(tmp_path).packages_for(WORDS)
    assert packages.names == ("tiny-words==1.0",)
    assert "1.0" in (Path(packages.folder) / "tiny_words.py").read_text()

    index.add("tiny_words", "1.0", code="import os\n")
    tampered = lock.model_copy(update={"requirements": ("tiny-words",)})
    with pytest.raises(RequirementsFailed, match=r"(?s)its hash differs.*DO NOT MATCH THE HASHES"):
        PackageStore(tmp_path / "others").install(tampered)
    assert [*(tmp_path / "others").iterdir()] == [tmp_path / "others" / SETS_LOCK]


def test_pip_says_what_is_missing_and_a_conflict_is_the_manifests(
    index: Index, store: Stores, tmp_path: Path
) -> None:
    with pytest.raises(RequirementsFailed) as failed:
        store().packages_for(("no-such-package-here",))
    assert "No matching distribution found for no-such-package-here" in str(failed.value)
    assert failed.value.exit_code is ExitCode.USER
    assert failed.value.location == ("spec", "code", "requirements")

    index.add("wants_old", "1.0", ["pydantic<1"])
    with pytest.raises(ManifestError) as conflict:
        store().packages_for(("wants-old",))
    (problem,) = conflict.value.problems
    assert problem.got.startswith("pydantic==") and problem.path == "spec.code.requirements"
    assert "wants-old 1.0 depends on pydantic<1" in str(conflict.value)
    assert not (tmp_path / "sets").exists()


def test_an_installed_package_needs_no_index_and_is_not_replaced(
    store: Stores, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(installation, "run_pip", needs_no_pip)
    packages = store().packages_for(("pydantic>=2", "no-such; python_version < '3'"))
    assert packages.names == () and Path(packages.folder).is_dir()
    with pytest.raises(ManifestError) as conflict:
        store().packages_for(("rlhf-operator", "pydantic<1"))
    (problem,) = conflict.value.problems
    assert problem.path == "spec.code.requirements[1]"
    assert problem.got == "pydantic<1" and problem.allowed.startswith("pydantic==2.")


def test_an_index_that_does_not_answer_is_the_clusters_fault_and_keeps_its_password(
    store: Stores, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("PIP_FIND_LINKS", raising=False)
    monkeypatch.setenv("PIP_INDEX_URL", "http://me:p%40ss-word@127.0.0.1:9/simple")
    monkeypatch.setenv("PIP_RETRIES", "0")
    with pytest.raises(PackageIndexUnreachable) as failed:
        store().packages_for(WORDS)
    assert failed.value.exit_code is ExitCode.RETRIABLE
    text = str(failed.value)
    assert "127.0.0.1:9" in text and "ss-word" not in text and "me:" not in text


INSTALL = textwrap.dedent(
    """
    import sys
    from pathlib import Path
    from rlhf_cli.packages.installation import PackageStore
    from rlhf_cli.packages.lock import PackageLock
    lock = PackageLock.model_validate_json(sys.argv[2])
    store = PackageStore(Path(sys.argv[1]))
    store.notify("ready")
    sys.stdin.readline()
    print(store.install(lock))
    """
)


def test_of_two_processes_one_installs_and_the_rest_of_a_killed_one_is_removed(
    index: Index, tmp_path: Path
) -> None:
    lock = lock_of(WORDS, ("tiny-words", "1.0", index.add("tiny_words", "1.0")))
    sets = tmp_path / "sets"
    killed = sets / f"{UNFINISHED}1"
    killed.mkdir(parents=True)
    (killed / "tiny_words.py").write_text("VERSION = ")
    command = [sys.executable, "-c", INSTALL, str(sets), lock.model_dump_json()]
    pipes: dict[str, Any] = {
        "stdin": subprocess.PIPE,
        "stdout": subprocess.PIPE,
        "stderr": subprocess.PIPE,
    }
    both = [subprocess.Popen(command, text=True, **pipes) for _ in range(2)]
    for process in both:
        assert process.stderr is not None and process.stderr.readline() == "ready\n"
    ended = [process.communicate("\n", timeout=120) for process in both]
    assert [process.returncode for process in both] == [0, 0], ended
    folder = sets / lock.digest
    assert [out for out, _ in ended] == [f"{folder}\n"] * 2
    assert sum("installed 1 package of" in err for _, err in ended) == 1
    assert {*sets.iterdir()} == {folder, sets / SETS_LOCK}
    assert "1.0" in (folder / "tiny_words.py").read_text()


def test_a_stopped_installation_ends_pip_and_leaves_no_set(
    index: Index, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    lock = lock_of(WORDS, ("tiny-words", "1.0", index.add("tiny_words", "1.0")))
    number = tmp_path / "number"
    program = f"import os, signal; os.symlink(str(os.getpid()), {str(number)!r}); signal.pause()"
    monkeypatch.setattr(pip, "find_pip", lambda: [sys.executable, "-c", program])

    def stop() -> None:
        if number.is_symlink():
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        PackageStore(tmp_path / "sets", keep_alive=stop).install(lock)
    assert not Path("/proc", os.readlink(number)).exists()
    assert [*(tmp_path / "sets").iterdir()] == [tmp_path / "sets" / SETS_LOCK]


def test_a_wait_for_another_installation_can_be_stopped(tmp_path: Path) -> None:
    sets = tmp_path / "sets"
    sets.mkdir()
    with (sets / SETS_LOCK).open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        stopped: Hook = pytest.fail
        with pytest.raises(pytest.fail.Exception):
            PackageStore(sets, keep_alive=stopped).install(lock_of(WORDS))


def test_a_folder_that_cannot_be_written_is_named(tmp_path: Path) -> None:
    (tmp_path / "sets").write_text("a file")
    with pytest.raises(FolderUnusable, match=f"cannot be stored.*{tmp_path}/sets"):
        PackageStore(tmp_path / "sets").install(lock_of(WORDS))


def test_a_full_folder_of_temporary_files_is_no_bug(
    store: Stores, monkeypatch: pytest.MonkeyPatch
) -> None:
    def resolve(*arguments: object) -> PackageLock:
        raise OSError(errno.ENOSPC, "No space left on device", "/tmp/rlhf-pip-x")

    monkeypatch.setattr(installation, "resolve", resolve)
    with pytest.raises(
        FolderUnusable, match="/tmp/rlhf-pip-x'; free space in the folder of"
    ) as failed:
        store().packages_for(WORDS)
    assert failed.value.is_disk_full


def test_the_sets_of_a_user_are_in_the_cache(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", "/cache")
    assert cache_folder() == Path("/cache/rlhf/packages")
    monkeypatch.setenv("HOME", "/home/me")
    for ignored in ("", "relative"):
        monkeypatch.setenv("XDG_CACHE_HOME", ignored)
        assert cache_folder() == Path("/home/me/.cache/rlhf/packages")
    monkeypatch.delenv("XDG_CACHE_HOME")
    assert cache_folder() == Path("/home/me/.cache/rlhf/packages")
    monkeypatch.delenv("HOME")
    monkeypatch.setattr(os, "getuid", lambda: 2**31 - 2)
    with pytest.raises(FolderUnusable, match="got no home folder.*set XDG_CACHE_HOME"):
        cache_folder()


def test_a_run_keeps_its_own_requirements_with_the_packages_and_forgets_both(
    store: Stores, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    FakePip().used_by(monkeypatch)
    monkeypatch.chdir(tmp_path)
    other = PackageStore(Path("sets")).packages_for(("tiny-words>=1",))
    code = CodeSpec(requirements=("tiny-words",))
    packages = store().packages_for(code.requirements)
    assert packages == other, "installed once, wherever the command was given"
    keep_lock(tmp_path, code, packages)
    lock = read_lock(tmp_path)
    assert lock is not None and lock.is_of(code.requirements, {})
    keep_lock(tmp_path, None, None)
    assert read_lock(tmp_path) is None and not (tmp_path / LOCK_FILE).exists()


def test_a_damaged_set_is_installed_again(store: Stores, monkeypatch: pytest.MonkeyPatch) -> None:
    FakePip().used_by(monkeypatch)
    folder = Path(store().packages_for(WORDS).folder)
    (folder / LOCK_FILE).write_text("{")
    (folder / "tiny_words.py").unlink()
    assert store().packages_for(WORDS).folder == str(folder)
    assert (folder / "tiny_words.py").is_file() and read_lock(folder) is not None
    assert {*folder.parent.iterdir()} == {folder, folder.parent / SETS_LOCK}


def test_a_run_whose_lock_is_damaged_says_so(
    store: Stores, said: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    FakePip().used_by(monkeypatch)
    store(tmp_path).packages_for(WORDS)
    assert not any("cannot be read" in line for line in said), "a new run has none"
    (tmp_path / LOCK_FILE).write_text('{"requi')
    store(tmp_path).packages_for(WORDS)
    assert said[-2].startswith(f"{tmp_path / LOCK_FILE} cannot be read: the run may get other")


def test_a_folder_of_temporary_files_that_cannot_be_used_is_named(
    store: Stores, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "none"))
    with pytest.raises(FolderUnusable, match=f"got .*{tmp_path}/none.* by TMPDIR"):
        store().packages_for(WORDS)


def test_a_package_that_cannot_be_built_is_shown_with_its_reason(
    index: Index, store: Stores, monkeypatch: pytest.MonkeyPatch
) -> None:
    # pip's settings turn this switch on by a zero.
    monkeypatch.setenv("PIP_NO_BUILD_ISOLATION", "0")
    with tarfile.open(index.folder / "tiny_words-1.0.tar.gz", "w:gz") as archive:
        program = b"raise SystemExit('no compiler is here')"
        file = tarfile.TarInfo("tiny_words-1.0/setup.py")
        file.size = len(program)
        archive.addfile(file, io.BytesIO(program))
    with pytest.raises(RequirementsFailed, match=r"(?s)pip says:.*no compiler is here"):
        store().packages_for(WORDS)


def test_a_users_file_of_pips_settings_changes_no_target(
    index: Index, store: Stores, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    index.add("tiny_letters", "1.0")
    index.add("tiny_words", "1.0", ["tiny-letters"])
    settings = tmp_path / "pip.conf"
    settings.write_text("[install]\nuser = true\nno-deps = true\nrequire-virtualenv = true\n")
    monkeypatch.setenv("PIP_CONFIG_FILE", str(settings))
    assert store().packages_for(WORDS).names == ("tiny-letters==1.0", "tiny-words==1.0")
