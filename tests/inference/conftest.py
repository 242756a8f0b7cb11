"""A small curated folder."""

from pathlib import Path

import pytest

from tests.training.runs import make_curated


@pytest.fixture(scope="session")
def curated(tmp_path_factory) -> Path:
    return make_curated(tmp_path_factory.mktemp("curated"))
