"""Rules of the whole tree: sizes, imports, words, docstrings (wiring only)."""

import ast
import re
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
PACKAGES = [
    "common",
    "curation",
    "dataloading",
    "models",
    "parallel",
    "inference",
    "training",
    "cli",
    "configs",
    "benchmarks",
]
MAX_LINES = 600
UNSAFE = (
    r"pickle\.load|yaml\.load\(|(?<![.\w])eval\(|shell=True|torch\.load\((?!.*weights_only=True)"
)
"""Ways in which data from outside could run as code."""
FOREIGN = (
    r"[\"' (=](/home|/root|/mnt|/Users)/",  # a path of somebody's machine
    r"--(extra-)?index-url|--find-links|--hash=",  # a registry, which is the user's choice
)


def files(*suffixes: str) -> list[Path]:
    """The project's own files: those that git tracks, or would."""
    listed = subprocess.run(
        ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    if listed.returncode != 0:
        pytest.skip("not a git checkout: the project's own files are not known")
    paths = [ROOT / name for name in listed.stdout.split("\0")]
    return [p for p in paths if p.is_file() and (not suffixes or p.suffix in suffixes)]


def code() -> list[Path]:
    found = files(".py")
    assert len(found) > 20, "the listing found next to nothing, so the rules would hold of nothing"
    return found


def test_no_file_is_too_long() -> None:
    long = {
        p.relative_to(ROOT): n for p in code() if (n := len(p.read_text().splitlines())) > MAX_LINES
    }
    assert long == {}, f"{MAX_LINES} lines is the limit; find the seam"


def lint_imports(folder: Path) -> subprocess.CompletedProcess[str]:
    lint = Path(sys.executable).parent / "lint-imports"
    return subprocess.run(
        [str(lint), "--no-cache", "--no-logo"],
        cwd=folder,
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
    )


def test_import_rules_hold() -> None:
    result = lint_imports(ROOT)
    assert result.returncode == 0, result.stdout + result.stderr


ALLOWED = [
    ("dataloading", "common"),
    ("models", "common"),
    ("parallel", "models"),
    ("inference", "parallel"),
    ("training", "inference"),
    ("training", "dataloading"),
    ("curation", "dataloading.schema"),
    ("cli", "curation"),
    ("cli", "hydra"),
]
FORBIDDEN = [
    ("common", "models"),
    ("dataloading", "models"),
    ("dataloading", "curation"),
    ("models", "parallel"),
    ("parallel", "dataloading"),
    ("inference", "training"),
    ("inference", "dataloading"),
    ("training", "curation"),
    ("training", "cli"),
    ("curation", "dataloading"),
    ("curation", "dataloading.loader"),
    ("curation", "training"),
    ("cli", "configs"),
    ("cli", "tests"),
    ("models", "hydra"),
    ("training", "omegaconf"),
]


@pytest.fixture
def toy_tree(tmp_path: Path) -> Path:
    """Our packages, empty, under our contracts; each imports what it may."""
    shutil.copy(ROOT / "pyproject.toml", tmp_path)
    for name in PACKAGES:
        (tmp_path / name).mkdir()
        allowed = [target for source, target in ALLOWED if source == name]
        (tmp_path / name / "__init__.py").write_text("")
        (tmp_path / name / "work.py").write_text("".join(f"import {t}\n" for t in allowed))
    for name in ("schema", "loader"):
        (tmp_path / "dataloading" / f"{name}.py").write_text("")
    return tmp_path


def test_contracts_allow_what_they_should(toy_tree: Path) -> None:
    result = lint_imports(toy_tree)
    assert result.returncode == 0, result.stdout + result.stderr


def test_contracts_refuse_what_they_should(toy_tree: Path) -> None:
    """Each forbidden import alone, so that none hides behind another."""
    passed = []
    for source, target in FORBIDDEN:
        offence = toy_tree / source / "offence.py"
        offence.write_text(f"import {target}\n")
        result = lint_imports(toy_tree)
        assert "Contracts:" in result.stdout, result.stdout + result.stderr
        if result.returncode == 0:
            passed.append(f"{source} -> {target}")
        offence.unlink()
    assert passed == []


def test_contracts_name_every_package() -> None:
    config = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]
    assert config["importlinter"]["root_packages"] == PACKAGES
    assert config["setuptools"]["packages"]["find"]["include"] == [f"{p}*" for p in PACKAGES]


def offences(pattern: str, paths: list[Path]) -> list[str]:
    found = []
    for path in paths:
        try:
            lines = path.read_text().splitlines()
        except UnicodeDecodeError:
            continue
        found += [
            f"{path.relative_to(ROOT)}:{i}: {line.strip()[:100]}"
            for i, line in enumerate(lines, 1)
            if re.search(pattern, line)
        ]
    return found


@pytest.mark.parametrize("pattern", FOREIGN)
def test_the_project_names_no_machine_and_no_registry(pattern: str) -> None:
    others = [p for p in files() if p != Path(__file__).resolve()]
    assert offences(pattern, others) == []


def test_nothing_from_outside_can_run_as_code() -> None:
    others = [p for p in code() if p != Path(__file__).resolve()]
    assert offences(UNSAFE, others) == []


def test_no_footage_is_committed() -> None:
    assert files(".mp4", ".avi", ".mkv", ".mov", ".webm", ".m4a", ".tar") == []


def test_every_module_says_what_it_is_for() -> None:
    silent = [
        str(path.relative_to(ROOT))
        for path in code()
        if path.read_text().strip() and ast.get_docstring(ast.parse(path.read_text())) is None
    ]
    assert silent == []


def test_every_lock_line_is_an_exact_pin() -> None:
    lines = (ROOT / "requirements.lock").read_text().splitlines()
    pins = [line for line in lines if line and not line.startswith("#")]
    assert [p for p in pins if not re.fullmatch(r"[\w.-]+==[\w.]+", p)] == [], "no hosts, no local"
    assert "torch==2.13.0" in pins


def test_the_lock_holds_every_dependency() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    needed = [*project["dependencies"], *project["optional-dependencies"]["dev"]]
    names = {re.split(r"[\[<>=]", n)[0].lower().replace("_", "-") for n in needed}
    locked = (ROOT / "requirements.lock").read_text().lower().replace("_", "-")
    assert {n for n in names if f"\n{n}==" not in locked} == set()
