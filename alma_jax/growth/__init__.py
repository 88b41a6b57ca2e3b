"""Surgery between stages: from a trained network to a larger one of the same function."""
