"""The `vfm` command from outside and inside: speed, dispatch, exit codes (wiring only)."""

import errno
import os
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import pytest

import cli.commands
from cli.main import command, command_names, main
from common.errors import NothingProduced, VfmError

ROOT = Path(cli.commands.__file__).parents[2]


def fake_command(
    monkeypatch: pytest.MonkeyPatch, error: BaseException | None, code: int = 0
) -> None:
    """Puts a subcommand `fake` in place that raises the error or returns the code."""
    module = ModuleType("cli.commands.fake")
    module.HELP = "\nmake believe\n\nusage: vfm fake\n\nexamples:\n  vfm fake\n"  # type: ignore
    module.INTERRUPTED = "make believe is over"  # type: ignore

    def run(argv: list[str]) -> int:
        if error is not None:
            raise error
        return code

    module.run = run  # type: ignore
    monkeypatch.setitem(sys.modules, "cli.commands.fake", module)
    monkeypatch.setattr("cli.main.command_names", lambda: ["fake", "view"])


def test_help_imports_the_standard_library_only() -> None:
    """What makes `vfm --help` slow is what it imports, so the imports are counted, not seconds."""
    code = (
        "import sys; from cli.main import main, command_names\n"
        "main(['--help'])\n"
        "for name in command_names(): main([name, '--help'])\n"
        "ours = {'cli', 'common', 'benchmarks', '__main__', 'sitecustomize', 'usercustomize'}\n"
        "tops = {n.partition('.')[0] for n in sys.modules if not n.startswith('__')}\n"
        "print('EXTRA', sorted(t for t in tops - ours if t not in sys.stdlib_module_names))\n"
    )
    # -S leaves out site-packages, where .pth files import what they like.
    run = subprocess.run(
        [sys.executable, "-S", "-c", code], cwd=ROOT, capture_output=True, text=True, timeout=60
    )
    assert run.returncode == 0, run.stderr
    assert "EXTRA []" in run.stdout


def test_help_lists_every_command(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--help"]) == 0
    out = capsys.readouterr().out
    for name in command_names():
        assert f"  {name}" in out
    assert "Exit codes: 0" in out


def test_no_command_is_a_wrong_request_that_shows_the_help(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert main([]) == 2
    assert "usage: vfm COMMAND" in capsys.readouterr().out


@pytest.mark.parametrize("name", command_names())
def test_every_command_has_help_with_examples(
    name: str, capsys: pytest.CaptureFixture[str]
) -> None:
    module = command(name)
    summary = module.HELP.strip().splitlines()[0]
    assert 10 < len(summary) < 80, "one line of the table"
    for words in ([name, "--help"], [name, "-h"], ["help", name], [name, "a=b", "--help"]):
        assert main(words) == 0
        out = capsys.readouterr().out
        assert out.startswith(summary)
        assert f"usage: vfm {name}" in out
        assert "examples:" in out
    assert callable(module.run)


def test_unknown_command_suggests_the_nearest(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["viwe", "x"]) == 2
    error = capsys.readouterr().err
    assert error.startswith("error: there is no command 'viwe' (did you mean 'view'?)")
    assert len(error.splitlines()) == 1


def test_version(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("importlib.metadata.version", lambda name: {"vfm": "1.2.3"}[name])
    assert main(["--version"]) == 0
    assert capsys.readouterr().out == "vfm 1.2.3\n"


@pytest.mark.parametrize(
    ("error", "code", "line"),
    [
        (VfmError("steps=0: at least 1 is needed"), 2, "error: steps=0: at least 1 is needed"),
        (NothingProduced("no clip was kept"), 3, "error: no clip was kept"),
        (
            PermissionError(errno.EACCES, "Permission denied", "/x"),
            2,
            "error: /x: access is denied; change the permissions, or give another path",
        ),
        (
            OSError(errno.ENOSPC, "No space left on device"),
            2,
            "error: the disk is full; make room, and give the same command again",
        ),
        (KeyboardInterrupt(), 130, "interrupted: make believe is over"),
    ],
)
def test_expected_ends_are_one_line(
    error: BaseException,
    code: int,
    line: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    fake_command(monkeypatch, error)
    assert main(["fake"]) == code
    printed = capsys.readouterr().err
    assert line in printed
    assert len(printed.strip().splitlines()) == 1


PLACES = {
    "afile/run": "afile: a file where a folder is needed; give another path",
    "afile": "a file where a folder is needed; give another path",
    "loop": "a link that leads back to itself; give another path",
    "loop/run": "a link that leads back to itself; give another path",
    "/proc/x/y": "nothing can be made in /proc; give another path",
    "a" * 300: "the name is too long; give a shorter one",
}


@pytest.mark.parametrize("name", PLACES, ids=lambda name: name[:9])
def test_an_impossible_place_is_one_line_that_names_the_setting(
    name: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("in").mkdir()
    Path("in/a.mp4").touch()
    Path("afile").touch()
    Path("loop").symlink_to("loop")
    assert main(["curate", "input=in", f"output={name}"]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith(f"error: output={name}: ")
    assert line.endswith(PLACES[name])


def test_a_folder_where_a_file_belongs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    fake_command(monkeypatch, IsADirectoryError(errno.EISDIR, "Is a directory", str(tmp_path)))
    assert main(["fake", f"captions={tmp_path}"]) == 2
    assert capsys.readouterr().err == (
        f"error: captions={tmp_path}: a folder where a file is needed; give another path\n"
    )


def test_a_folder_that_is_gone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "gone").mkdir()
    monkeypatch.chdir(tmp_path / "gone")
    (tmp_path / "gone").rmdir()
    assert main(["doctor"]) == 2
    assert "error: the current folder does not exist any more" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("name", "what"),
    [
        ("curate", "continues"),
        ("pretrain", "continues"),
        ("generate", "starts again"),
        ("view", ""),
    ],
)
def test_ctrl_c_says_what_the_same_command_does(
    name: str, what: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def interrupt(argv: list[str]) -> int:
        raise KeyboardInterrupt

    monkeypatch.setattr(command(name), "run", interrupt)
    assert main([name]) == 130
    line = capsys.readouterr().err.strip()
    assert what in line if what else line == "interrupted"


@pytest.mark.parametrize(
    "error",
    [ValueError("the answer is not 42"), FileNotFoundError(errno.ENOENT, "No such file", "/x")],
)
def test_a_defect_keeps_its_traceback(
    error: Exception, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    fake_command(monkeypatch, error)
    assert main(["fake"]) == 70
    printed = capsys.readouterr().err
    assert "Traceback" in printed
    assert f"{type(error).__name__}: {error}" in printed


def test_the_code_of_the_command_is_the_code_of_vfm(monkeypatch: pytest.MonkeyPatch) -> None:
    fake_command(monkeypatch, None, code=1)
    assert main(["fake"]) == 1


def test_a_closed_pipe_is_quiet() -> None:
    """`vfm COMMAND | head -1` with far more output than a pipe holds."""
    code = (
        "import sys, types\n"
        "import cli.main as m\n"
        "f = types.ModuleType('f'); f.HELP = 'x\\n' * 200_000\n"
        "m.command = lambda name: f\n"
        "sys.exit(m.main(['help', 'f']))\n"
    )
    with subprocess.Popen(
        [sys.executable, "-c", code], cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE
    ) as process:
        assert process.stdout
        assert process.stderr
        assert process.stdout.readline() == b"x\n"
        process.stdout.close()
        assert process.stderr.read() == b""
        assert process.wait(timeout=60) == 141


def vfm(*argv: str, prelude: str = "", **settings: str) -> subprocess.CompletedProcess[bytes]:
    """`vfm` as a process of its own, in a shell that can close and redirect its streams."""
    code = "import sys; from cli.main import main; sys.exit(main())"
    return subprocess.run(
        ["/bin/sh", "-c", f'exec "$@" {prelude}', "sh", sys.executable, "-c", code, *argv],
        cwd=ROOT,
        env=os.environ | settings,
        capture_output=True,
        check=False,
        timeout=60,
    )


@pytest.mark.parametrize("closed", ["<&-", ">&-", "2>&-", "<&- >&- 2>&-"])
def test_closed_streams_are_no_matter(closed: str) -> None:
    result = vfm("--help", prelude=closed)
    assert (result.returncode, result.stderr) == (0, b"")


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="this system has no /dev/full")
def test_a_full_disk_under_the_output_is_one_line() -> None:
    result = vfm("--help", prelude=">/dev/full")
    assert result.returncode == 2
    assert result.stderr == b"error: the disk is full; make room, and give the same command again\n"


@pytest.mark.parametrize("encoding", ["ascii", "latin-1"])
def test_signs_that_the_terminal_has_not_are_printed_as_numbers(encoding: str) -> None:
    result = vfm("config", "curate", "input=犬", "output=x", PYTHONIOENCODING=encoding)
    assert (result.returncode, result.stderr) == (0, b"")
    assert b"input: \\u72ac\n" in result.stdout
