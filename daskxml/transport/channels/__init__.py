"""Channels: how the bytes of arrays get from one worker to another."""
