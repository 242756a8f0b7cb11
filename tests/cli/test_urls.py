"""A command that reads folders of this machine alone says so when given a URL. No network."""

import pytest

from cli.commands import view
from common.errors import VfmError


def test_view_names_what_to_copy() -> None:
    with pytest.raises(VfmError, match="s3://b/out.*copy its folder report/"):
        view.run(["s3://b/out"])
