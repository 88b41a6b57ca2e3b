"""Exported predictors: their folder, their inputs and outputs, scores, and the HTTP service. Reads no checkpoints."""
