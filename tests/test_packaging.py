"""The wheel and the editable install: what they hold, and `vfm` from a folder of look-alikes.

Our packages have plain names (`models`, `tests`, `cli`), so a folder in which somebody works may
hold the same ones. Whatever lies there must never be imported (wiring only).
"""

import json
import os
import shutil
import subprocess
import sys
import sysconfig
import zipfile
from pathlib import Path

import pytest

from cli.main import command, command_names

ROOT = Path(__file__).resolve().parents[1]
PACKAGES = {"common", "curation", "dataloading", "models", "parallel", "inference", "training"}
DECOYS = [*sorted(PACKAGES), "cli", "configs", "benchmarks", "tests"]


def call(*words: str | Path, cwd: Path) -> subprocess.CompletedProcess[str]:
    env = {k: v for k, v in os.environ.items() if not k.startswith(("PYTHON", "PYTEST"))}
    return subprocess.run(
        [str(w) for w in words],
        cwd=cwd,
        env={**env, "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
    )


def done(result: subprocess.CompletedProcess[str]) -> str:
    assert result.returncode == 0, result.stdout + result.stderr
    return result.stdout


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A copy of the project's own files, so that building leaves nothing in the checkout."""
    listed = call("git", "ls-files", "-z", "--cached", "--others", "--exclude-standard", cwd=ROOT)
    if listed.returncode != 0:
        pytest.skip("not a git checkout: the project's own files are not known")
    copy = tmp_path_factory.mktemp("source")
    for name in filter(None, listed.stdout.split("\0")):
        if (ROOT / name).is_file():
            (copy / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(ROOT / name, copy / name, follow_symlinks=False)
    return copy


@pytest.fixture(scope="module")
def wheel(source: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("wheel")
    pip = (sys.executable, "-m", "pip", "wheel", "--no-deps", "--no-build-isolation", "--no-index")
    done(call(*pip, "--wheel-dir", folder, ".", cwd=source))
    return next(folder.glob("vfm-*.whl"))


def install(what: list[str | Path], folder: Path, cwd: Path) -> Path:
    """A new environment that holds `what` and borrows this one's dependencies. Returns its `bin`.

    A folder that a `.pth` file names is searched, but its own `.pth` files are not read: the vfm
    that is installed here stays out.
    """
    done(call(sys.executable, "-m", "venv", "--without-pip", folder, cwd=cwd))
    site = next(folder.glob("lib/python*/site-packages"))
    (site / "borrowed.pth").write_text(sysconfig.get_paths()["purelib"] + "\n")
    pip = (sys.executable, "-m", "pip", "--python", folder / "bin/python", "install")
    done(call(*pip, "--no-deps", "--no-index", "--no-build-isolation", *what, cwd=cwd))
    return folder / "bin"


@pytest.fixture(scope="module", params=["wheel", "editable"])
def installed(
    request: pytest.FixtureRequest,
    wheel: Path,
    source: Path,
    tmp_path_factory: pytest.TempPathFactory,
) -> Path:
    folder = tmp_path_factory.mktemp(request.param) / "environment"
    what: list[str | Path] = [wheel] if request.param == "wheel" else ["--editable", "."]
    return install(what, folder, source)


@pytest.fixture
def lookalikes(tmp_path: Path) -> Path:
    """A folder with packages of our names that end the program when they are imported."""
    for name in DECOYS:
        (tmp_path / name).mkdir()
        (tmp_path / name / "__init__.py").write_text(f"raise SystemExit('imported ./{name}')\n")
    return tmp_path


def test_the_wheel_holds_the_packages_and_nothing_else(wheel: Path, source: Path) -> None:
    names = zipfile.ZipFile(wheel).namelist()
    tops = {name.split("/")[0] for name in names}
    info = next(top for top in tops if top.endswith(".dist-info"))
    assert tops == {*PACKAGES, "cli", "configs", "benchmarks", info}
    ours = {
        path.relative_to(source).as_posix()
        for top in (*PACKAGES, "cli", "configs", "benchmarks")
        for path in (source / top).rglob("*")
        if path.is_file() and not {"__pycache__", "results"} & set(path.parts)
    }
    assert {n for n in names if not n.startswith(info)} == ours, "code, YAML and page assets"
    assert f"{info}/licenses/LICENSE" in names


def test_vfm_answers_among_lookalikes(installed: Path, lookalikes: Path) -> None:
    vfm = installed / "vfm"
    assert "usage: vfm COMMAND" in done(call(vfm, "--help", cwd=lookalikes))
    assert done(call(vfm, "--version", cwd=lookalikes)) == "vfm 0.1.0\n"
    rows = json.loads(done(call(vfm, "doctor", "json=true", cwd=lookalikes)))
    assert {row["name"]: row["value"] for row in rows}["vfm"] == "0.1.0"


@pytest.mark.parametrize("name", [n for n in command_names() if hasattr(command(n), "schema")])
def test_vfm_finds_its_configs_among_lookalikes(
    name: str, installed: Path, lookalikes: Path
) -> None:
    assert ":" in done(call(installed / "vfm", "config", name, cwd=lookalikes))


def test_the_sample_captions_are_installed(installed: Path, lookalikes: Path) -> None:
    plan = done(call(installed / "vfm", "demo", "dry_run=true", cwd=lookalikes))
    (captions,) = {w.split("=", 1)[1] for w in plan.split() if w.startswith("captions=")}
    assert "bikes.mp4" in json.loads(Path(captions).read_text())


def test_vfm_under_torchrun_among_lookalikes(installed: Path, lookalikes: Path) -> None:
    run = (installed / "python", "-m", "torch.distributed.run", "--standalone", "--no-python")
    result = call(*run, "--nproc-per-node=1", installed / "vfm", "--version", cwd=lookalikes)
    assert "vfm 0.1.0" in done(result)
