"""Wiring tier: a wish to stop, at whatever moment it comes."""

import io
import os
import signal

import pytest
from rich.console import Console

from parallel import checkpoint
from tests.training.runs import make_trainer
from training.stop import StopRequest
from training.trainer import Trainer


def trained_to(run) -> list[int]:
    return [checkpoint.read_state(p)["step"] for p in checkpoint.found(run / "checkpoints")]


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_after_the_step_s_own_work_still_saves(make_config, monkeypatch, number):
    # Between the last look at the wish and the loop's own test nothing else runs.
    periodically = Trainer._periodically

    def then_signal(self):
        periodically(self)
        if self.step == 3:
            os.kill(os.getpid(), number)

    monkeypatch.setattr(Trainer, "_periodically", then_signal)
    said = io.StringIO()
    trainer = make_trainer(make_config(checkpoint_every=100), Console(file=said, width=200))
    before = signal.getsignal(signal.SIGTERM)
    with pytest.raises(KeyboardInterrupt):
        trainer.run()
    assert trained_to(trainer.folder.path) == [3]
    assert said.getvalue().count("stopping once this step is done and saved") == 1
    assert signal.getsignal(signal.SIGTERM) is before


def test_a_signal_during_the_last_save_interrupts_nothing(make_config, monkeypatch):
    save = Trainer._save

    def signalled(self, loader):
        if self.step == self.config.steps:
            os.kill(os.getpid(), signal.SIGINT)
        save(self, loader)

    monkeypatch.setattr(Trainer, "_save", signalled)
    trainer = make_trainer(make_config(steps=2, checkpoint_every=100))
    trainer.run()
    assert trainer.stop.asked and trained_to(trainer.folder.path) == [2]


def test_a_second_ctrl_c_interrupts_at_once():
    # What runs in the background of a shell starts with Ctrl-C ignored.
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        interrupt_twice()
    finally:
        signal.signal(signal.SIGINT, before)


def interrupt_twice():
    stop = StopRequest()
    with stop.signals(Console(quiet=True)):
        os.kill(os.getpid(), signal.SIGINT)
        assert stop.asked
        with pytest.raises(KeyboardInterrupt):
            os.kill(os.getpid(), signal.SIGINT)
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
