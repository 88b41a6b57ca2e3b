"""The training loop of a stage, and the program that the devices run."""
