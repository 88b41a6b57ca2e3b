"""Tasks: what batches, losses, predictions and selection are. contract.py says what a task has to define."""
