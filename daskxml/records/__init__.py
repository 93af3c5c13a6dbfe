"""The files of a run: its directory, history, checkpoints and environment."""
