"""Wiring tier: where a model can be put."""

import pytest
import torch

from common.errors import ConfigError
from models.encoding import choose_device


@pytest.mark.parametrize("name", ["meta", "mps", "cpu:0", "xla", "cuda:", "cuda:x", "", "gpu"])
def test_devices_that_cannot_train_are_refused(name):
    with pytest.raises(ConfigError, match=f"device={name} is not known; choose auto, cpu, cuda"):
        choose_device(name)


def test_devices():
    assert choose_device("cpu") == torch.device("cpu")
    assert choose_device("auto").type in ("cpu", "cuda")
    with pytest.raises(ConfigError, match="device=cuda:99 cannot be used here"):
        choose_device("cuda:99")
