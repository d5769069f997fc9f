"""What the emulator says where something is missing, and where it keeps what was compiled."""

import os
import re
import shutil
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import psutil
import pytest
from conftest import ROOT

from emulator import EmulatorError, compiling, preparing
from emulator.compiling import kept_in
from emulator.rom import read_rom

PACKAGE = ROOT / "emulator"
NO_NUMBA = "import sys; sys.modules['numba'] = None"
NO_ROM = (  # an ale-py whose folder has none
    "import importlib.util as util, types; found = util.find_spec; "
    "util.find_spec = lambda name, *more: types.SimpleNamespace(origin='/none/ale_py.py') "
    "if name == 'ale_py' else found(name, *more)"
)


@pytest.mark.parametrize(
    ("without", "told"),
    [(NO_NUMBA, "Numba, which compiles"), (NO_ROM, "no ROM at /none/roms/pong.bin (No such")],
)
def test_the_rung_says_in_one_line_what_is_missing(without: str, told: str, tmp_path: Path) -> None:
    script = str(ROOT / "08_recompiled_pong.py")
    run = "import runpy; runpy.run_path(sys.argv[0], run_name='__main__')"
    program = f"import sys; {without}; sys.argv[:] = {[script, '--run-dir', str(tmp_path)]}; {run}"
    command = [sys.executable, "-c", program]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=120)
    assert (done.returncode, done.stdout) == (2, "")
    assert told in done.stderr
    assert done.stderr.count("\n") == 1
    assert not list(tmp_path.iterdir())


@pytest.mark.usefixtures("console")
def test_what_was_prepared_is_not_prepared_again() -> None:
    before = psutil.Process().children()
    with preparing():
        assert psutil.Process().children() == before
    assert list(compiling.folder().rglob("games.*.nbi"))  # the fixture did it in another process


def test_preparing_ends_with_an_interrupted_program_and_no_signal_but_that_ends_it(
    tmp_path: Path,
) -> None:
    shutil.copytree(PACKAGE, tmp_path / "emulator", ignore=shutil.ignore_patterns("__pycache__"))
    program = """
import os
import emulator, psutil
with emulator.preparing():
    (child,) = psutil.Process().children()
    print(child.pid, os.getsid(child.pid))
    raise KeyboardInterrupt
"""
    command = [sys.executable, "-c", program]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=120)
    pid, session = done.stdout.split()
    assert pid == session  # of its own: signals to the terminal or the group do not reach it
    assert not psutil.pid_exists(int(pid))
    assert done.stderr.count("Traceback") == 1


def test_files_import_only_those_above_them_in_the_documentation() -> None:
    table = re.findall(r"^\| `(\w+).py` \|", (PACKAGE / "README.md").read_text(), re.MULTILINE)
    order = [*table, "__main__"]
    assert sorted(order) == sorted(file.stem for file in PACKAGE.glob("*.py"))
    for number, name in enumerate(order):
        text = (PACKAGE / f"{name}.py").read_text()  # the translation's imports, too
        imported = re.findall(r"^ *from (?:\.|{__package__}\.)(\w+) import", text, re.MULTILINE)
        assert set(imported) <= set(order[:number]), name
        assert "import emulator" not in text
        assert "from emulator" not in text


def test_another_rom_is_refused(tmp_path: Path) -> None:
    other = tmp_path / "breakout.bin"
    other.write_bytes(b"\x00" * 2048)
    with pytest.raises(EmulatorError, match=r"\A.*breakout.bin is not the Pong .*\Z"):
        read_rom(other)
    with pytest.raises(EmulatorError, match=r"\Ano ROM at .*: reinstall ale-py\Z"):
        read_rom(tmp_path / "missing.bin")


def test_only_what_has_long_been_of_no_use_is_deleted(tmp_path: Path) -> None:
    kept = tmp_path / "__pycache__"
    old, new, other = (kept / name for name in ("pong-old", "pong-new", "numba"))
    for folder in (old, new, other):
        folder.mkdir(parents=True)
        (folder / "file").touch()
    for folder in (old, other):
        os.utime(folder, (0, time.time() - 2 * 24 * 3600))
    now = kept_in(tmp_path)
    assert now.is_dir()
    assert set(kept.iterdir()) == {other, new, now}


def test_processes_that_begin_at_once_share_a_folder(tmp_path: Path) -> None:
    def made(number: int) -> Path:
        package = tmp_path / str(number // 8)
        old = package / "__pycache__" / f"pong-{number}"
        old.mkdir(parents=True)
        os.utime(old, (0, 0))
        folder = kept_in(package)
        (folder / str(number)).touch()  # still there
        return folder

    with ThreadPoolExecutor(8) as pool:
        folders = list(pool.map(made, range(80)))
    assert all(len(list(folder.iterdir())) == 8 for folder in folders)


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write everywhere")
def test_a_folder_that_cannot_be_written_to_is_not_used(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    kept = kept_in(tmp_path)
    kept.chmod(0o500)
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    assert kept_in(tmp_path) == tmp_path / "home/.cache/pong-emulator" / kept.name


def test_without_a_home_the_package_keeps_what_was_compiled(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("os.path.expanduser", lambda path: path)  # nobody knows where it is
    assert kept_in(tmp_path).parent == tmp_path / "__pycache__"


def test_where_nothing_can_be_kept_nothing_is_left_behind(tmp_path: Path) -> None:
    package, home, temporary = (tmp_path / name for name in ("package", "home", "temporary"))
    for folder in (package, home, temporary):
        folder.mkdir()
    (package / "__pycache__").touch()  # files, where root, too, can make no folders
    (home / ".cache").touch()
    program = (
        "import sys; from pathlib import Path; from emulator.compiling import kept_in; "
        "folder = kept_in(Path(sys.argv[1])); (folder / 'x').touch(); print(folder)"
    )
    env = os.environ | {"HOME": str(home), "TMPDIR": str(temporary)}
    command = [sys.executable, "-c", program, str(package)]
    done = subprocess.run(command, cwd=ROOT, env=env, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    assert Path(done.stdout.strip()).is_relative_to(temporary)
    assert not list(temporary.iterdir())
