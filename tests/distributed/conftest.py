"""The worlds that all distributed tests share: started at first use, once per session."""

from collections.abc import Iterator

import pytest

from tests.distributed.pool import Pool


@pytest.fixture(scope="session")
def world2() -> Iterator[Pool]:
    pool = Pool(2)
    yield pool
    pool.close()


@pytest.fixture(scope="session")
def world4() -> Iterator[Pool]:
    pool = Pool(4)
    yield pool
    pool.close()


@pytest.fixture
def worlds(world2: Pool, world4: Pool) -> dict[int, Pool]:
    """By number of processes."""
    return {2: world2, 4: world4}
