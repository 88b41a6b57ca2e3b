"""Kinds of learning: what batches, losses, predictions and selection are. contract.py says what a problem defines."""
