"""Growth between stages: makes a larger network from a trained one. Works on host arrays."""
