"""Computing: the part of one worker in a run, from its rows to its replica."""
