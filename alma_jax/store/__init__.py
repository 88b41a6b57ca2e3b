"""The files of a run: their names and formats, the run folder, checkpoints, and the copy of a run in a store."""
