"""What a user calls: train, launch, attach, stop and simulate runs."""
