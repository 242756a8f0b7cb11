"""How a model is spread over ranks, and how its state is stored."""
