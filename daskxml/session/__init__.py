"""Deciding: a run as a state machine, from reports of what happened to commands."""
