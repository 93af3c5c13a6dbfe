"""Whether a worker's communicator has ended all that it did."""


def is_idle(communicator):
    """Whether no collective runs, no connection waits for one, and no channels are cached."""
    waiting = communicator._running, communicator._pending, communicator._rendezvous._futures
    return not any((*waiting, communicator._cache))
