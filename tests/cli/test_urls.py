"""Commands that read folders of this machine alone say so when they are given a URL. No network."""

import pytest

from cli.commands import data, view
from common.errors import VfmError


@pytest.mark.parametrize("action", ["info", "peek", "verify", "index"])
def test_data_names_what_to_copy(action: str) -> None:
    with pytest.raises(VfmError, match=f"s3://b/out.*vfm data {action}.*copy its folder shards/"):
        data.run([action, "s3://b/out"])


def test_view_names_what_to_copy() -> None:
    with pytest.raises(VfmError, match="s3://b/out.*copy its folder report/"):
        view.run(["s3://b/out"])
