"""The objective that a configuration asks for."""

from models.objectives.config import ObjectiveConfig
from models.objectives.loss import Objective
from models.objectives.next_token import NextToken

AnyObjective = Objective | NextToken


def make_objective(config: ObjectiveConfig) -> AnyObjective:
    """By its target."""
    return NextToken() if config.target == "next_token" else Objective(config)
