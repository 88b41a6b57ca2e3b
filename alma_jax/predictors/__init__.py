"""Exported predictors: their folder, their inputs and outputs, and the HTTP service. Reads no checkpoints."""
