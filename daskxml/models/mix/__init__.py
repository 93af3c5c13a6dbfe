"""Models that are weighted sums of models."""
