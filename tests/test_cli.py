"""The command line as a whole: help, version and usage errors."""

import os
import re
import subprocess
import sys
from pathlib import Path

import cv2
import numpy as np
import pytest
import typer

from deepmatching.cli import app, main
from deepmatching.commands.machine import LIBRARY_ADDRESSES
from helpers.fake_datasets import write_image
from helpers.processes import errors_of, run
from helpers.synthetic_pictures import draw_photo

COMMANDS = [str(command.callback.__name__).replace("_", "-") for command in app.registered_commands if command.callback]


def test_help_and_version() -> None:
    listed = run("--help").stdout
    assert all(re.search(rf"^  {name} +[A-Z]", listed, re.MULTILINE) for name in COMMANDS)
    assert run("--version").stdout.startswith("deepmatching ")


@pytest.mark.parametrize("name", COMMANDS)
def test_the_help_of_a_command_describes_every_option_and_shows_no_type_names(name: str) -> None:
    text = run(name, "--help").stdout
    assert f"deepmatching {name} [OPTIONS]" in text and "-v, --verbose" in text and "-q, --quiet" in text
    assert not re.search("<(bool|int|str|path|float)|[{}]", text), text
    assert all(param.help for param in typer.main.get_command(app).commands[name].params)  # type: ignore[attr-defined]


def test_help_needs_none_of_the_slow_libraries() -> None:
    code = (
        "import sys, deepmatching.cli as cli\n"
        "try: cli.app(['flow', '--help'], standalone_mode=False)\n"
        "finally: print(sorted({'torch', 'numba', 'numpy', 'cv2', 'h5py', 'matplotlib'} & set(sys.modules)))"
    )
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert result.stdout.endswith("[]\n"), result.stdout


def test_without_arguments_the_help_is_shown_and_the_command_fails() -> None:
    result = run()
    assert (result.returncode, result.stdout) == (2, "")
    assert result.stderr == run("--help").stdout


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ("match a.png", "See 'deepmatching match --help'."),
        ("sing", "See 'deepmatching --help'."),
        ("match -v", "A"),
        ("warp a.png b.png -o c.png --between 2", ". See 'deepmatching warp --help'."),
    ],
)
def test_a_usage_error_is_one_line_that_points_to_the_help_of_its_command(arguments: str, words: str) -> None:
    result = run(*arguments.split())
    assert (result.returncode, result.stdout, result.stderr.count("\n")) == (2, "", 1) and words in result.stderr


@pytest.mark.parametrize(("words", "offered"), [("deepmatching ma", "match"), ("deepmatching match --rad", "--radius")])
def test_the_shell_completes_commands_and_options(monkeypatch: pytest.MonkeyPatch, words: str, offered: str) -> None:
    monkeypatch.setenv("_DEEPMATCHING_COMPLETE", "complete_bash")
    monkeypatch.setenv("COMP_WORDS", words)
    monkeypatch.setenv("COMP_CWORD", str(words.count(" ")))
    assert run().stdout.split() == [offered]


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs a device that is always full")
@pytest.mark.parametrize("arguments", [["--help"], ["--version"], ["match", "--help"]])
@pytest.mark.parametrize("unbuffered", ["", "1"])
def test_a_full_standard_output_is_reported(
    monkeypatch: pytest.MonkeyPatch, arguments: list[str], unbuffered: str
) -> None:
    monkeypatch.setenv("PYTHONUNBUFFERED", unbuffered)
    with open("/dev/full", "w") as full:
        result = run(*arguments, stdout=full)
    assert result.returncode == 2 and len(result.stderr.splitlines()) == 1
    assert result.stderr.startswith("deepmatching: Cannot write to standard output (No space left on device)")


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs a device that is always full")
@pytest.mark.parametrize("unbuffered", ["", "1"])
def test_a_full_standard_error_changes_neither_the_exit_code_nor_the_output(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, unbuffered: str
) -> None:
    monkeypatch.setenv("PYTHONUNBUFFERED", unbuffered)
    with open("/dev/full", "w") as full:
        for arguments, code in ((["sing"], 2), (["--version"], 0)):
            command = [sys.executable, "-m", "deepmatching", *arguments]
            result = subprocess.run(command, stdout=subprocess.PIPE, stderr=full, text=True, cwd=tmp_path, check=False)
            assert result.returncode == code
            assert result.stdout == ("" if code else run("--version").stdout)


def test_a_reader_that_stops_early_is_no_traceback() -> None:
    reading, writing = os.pipe()
    os.close(reading)
    for arguments in (["--help"], ["--version"]):
        assert run(*arguments, stdout=writing).stderr == ""
    os.close(writing)


#: Runs the command, and sends it the interrupt key's signal when it imports MODULE.
INTERRUPTED = """
import signal, sys
signal.signal(signal.SIGINT, signal.default_int_handler)
class Interrupting:
    def find_spec(self, name, path=None, target=None):
        if name == MODULE:
            sys.meta_path.remove(self)
            signal.raise_signal(signal.SIGINT)
sys.meta_path.insert(0, Interrupting())
from deepmatching.__main__ import main
main()
"""


@pytest.mark.parametrize(
    "module",
    [
        "deepmatching.cli",
        "typer",
        "deepmatching.commands.match",
        *(pytest.param(name, marks=pytest.mark.slow) for name in ("numpy", "torch", "cv2", "deepmatching.matcher")),
    ],
)
def test_the_interrupt_key_during_imports_is_no_traceback(module: str) -> None:
    command = [sys.executable, "-c", INTERRUPTED.replace("MODULE", repr(module)), "match", "a.png", "b.png"]
    result = subprocess.run(command, capture_output=True, text=True, check=False)
    assert (result.returncode, result.stderr) == (130, "deepmatching: interrupted\n")


#: Runs the command, and prints which modules it has imported.
IMPORTING = """
import sys
from deepmatching.__main__ import main
try:
    main()
finally:
    print(*sys.modules)
"""

#: Modules that take long to import, which matching does not need once its kernels are compiled.
HEAVY = {
    "h5py",
    "matplotlib",
    "networkx",
    "numba.np.linalg",
    "scipy.linalg",
    "sympy",
    "torch._dynamo",
    "torch._inductor",
}


@pytest.mark.slow
@pytest.mark.parametrize("command", ["match", "flow"])
def test_matching_imports_nothing_heavy_once_its_kernels_are_compiled(command: str, tmp_path: Path) -> None:
    for name in ("a.png", "b.png"):
        write_image(tmp_path / name, draw_photo(0, 96, 128))
    words = [command, "a.png", "b.png", "-o", "ab.npz" if command == "match" else "ab.flo", "--device", "cpu"]
    runs = [
        subprocess.run(
            [sys.executable, "-c", IMPORTING, *words], cwd=tmp_path, capture_output=True, text=True, check=True
        )
        for _ in range(2)
    ]
    imported = set(runs[1].stdout.split())
    assert "torch" in imported and imported & HEAVY == set()


@pytest.mark.parametrize(("error", "code"), [(KeyboardInterrupt(), 130), (EOFError("Ran out of input"), None)])
def test_the_interrupt_key_ends_the_work_and_the_end_of_a_file_is_not_taken_for_it(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str], error: BaseException, code: int | None
) -> None:
    def raises(*_: object) -> None:
        raise error

    monkeypatch.setattr("deepmatching.commands.options.check_outputs", raises)
    monkeypatch.setattr(sys, "argv", ["deepmatching", "match", "a.png", "b.png"])
    with pytest.raises(SystemExit if code else EOFError) as ended:
        main()
    if code:
        assert (ended.value.code, capfd.readouterr().err.strip()) == (130, "deepmatching: interrupted")


@pytest.mark.slow
def test_a_remark_of_libjpeg_is_not_printed(tmp_path: Path) -> None:
    picture = np.random.default_rng(0).integers(0, 256, (64, 64, 3), np.uint8)
    data = cv2.imencode(".jpg", cv2.GaussianBlur(picture, (0, 0), 2))[1].tobytes()
    (tmp_path / "good.jpg").write_bytes(data)
    (tmp_path / "odd.jpg").write_bytes(data[:-2] + b"\0\0\0" + data[-2:])  # between the scan and the end marker
    arguments = ("match", "good.jpg", "odd.jpg", "--model", "hog", "-o", "m.txt", "--device", "cpu")
    result = run(*arguments, cwd=tmp_path)
    assert result.returncode == 0, result.stderr
    assert "JPEG" not in result.stderr


@pytest.mark.slow
def test_warnings_of_libraries_are_not_shown_unless_asked_for() -> None:
    code = (
        "import warnings, sys; from deepmatching.cli import main; from deepmatching.commands import options\n"
        "options.check_outputs = lambda *_: (warnings.warn('overflow', RuntimeWarning), sys.exit(0))\n"
        "sys.argv = ['deepmatching', 'match', 'a.png', 'b.png']; main()"
    )
    shown = []
    for options in ([], ["-W", "default"]):
        result = subprocess.run([sys.executable, *options, "-c", code], capture_output=True, text=True, check=False)
        assert result.returncode == 0, result.stderr
        shown.append("RuntimeWarning: overflow" in result.stderr)
    assert shown == [False, True]


def test_a_failed_allocation_is_one_line_and_exit_code_2() -> None:
    code = """
import deepmatching.cli as cli
def fail(**_): raise MemoryError
cli.app = fail
cli.main()
"""
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert (result.returncode, result.stdout) == (2, "")
    assert result.stderr.startswith("deepmatching: The memory ran out: ") and result.stderr.count("\n") == 1


@pytest.mark.slow
@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="limits of addresses are enforced on Linux")
@pytest.mark.parametrize("megabytes", [40, 300, 1100, 1300, 1500])
def test_a_limit_of_addresses_is_reported(tmp_path: Path, megabytes: int) -> None:
    """``ulimit -v`` that is too tight for the libraries, for the kernels or for the images above what Python takes."""
    for name in ("a.png", "b.png"):
        cv2.imwrite(str(tmp_path / name), np.random.default_rng(0).integers(0, 255, (600, 800, 3), dtype=np.uint8))
    code = f"""
import resource, sys
from pathlib import Path
taken = 4096 * int(Path("/proc/self/statm").read_text().split()[0])
resource.setrlimit(resource.RLIMIT_AS, 2 * (taken + {megabytes} * 10**6,))
sys.argv = ["deepmatching", "match", "a.png", "b.png", "--radius", "full", "-o", "m.txt", *sys.argv[1:]]
from deepmatching.cli import main
main()
"""
    environment = {**os.environ, "OMP_NUM_THREADS": "2"}
    command = [sys.executable, "-c", code]
    result = subprocess.run(command, capture_output=True, text=True, check=False, cwd=tmp_path, env=environment)
    assert result.returncode == 2, result.stderr
    (error,) = errors_of(result)
    assert error.startswith("deepmatching: ") and "memory" in error
    assert ("leaves" in error) == (megabytes * 10**6 < LIBRARY_ADDRESSES) and not (tmp_path / "m.txt").exists()
    helped = subprocess.run([*command, "--help"], capture_output=True, text=True, check=False, cwd=tmp_path)
    assert helped.returncode == 0 and "Usage" in helped.stdout
