"""Transport: moves arrays between workers.

A collective (a merge, or a gang of workers) is one program of messages for each rank
(`daskxml.collectives.messages`). This room runs the programs of one worker over connections to the
others, in four layers:

- `communicator`: all collectives of a worker. It begins, aborts and forgets them, refuses stale
  ones by their numbers, and caches open channels from one merge to the next.
- `endpoint`: one rank in one collective. It drives the program in a thread of its own, and sends
  through a `SendQueue` for each peer, so that sending overlaps receiving and arithmetic.
- `handshake`: how two endpoints find each other, and choose the kind of their channel.
- `channels`: how bytes move, one way, behind one `protocol`: references to shared memory within a
  machine (`shared_memory`, over `shm_arrays`), a plain socket (`tcp`), or
  messages over any other Dask comm (`dask_comm`; `ucx` from device to device).

One message: the program of rank 0 yields ``Send(1, array)``. `Endpoint` puts the array's bytes into
the `SendQueue` for rank 1. At the first message, the queue's thread has the event loop connect to
the worker of rank 1, whose server passes the comm to `Communicator.accept`; there it waits in the
`Rendezvous` until the endpoint of rank 1 accepts it and answers "ready". Both ends then open their
side of a channel, and the event loops have no more to do with it: `Sender.send` blocks in the
queue's thread, or does not block in the program's where the array is small or in shared memory. The
program of rank 1 has yielded ``Receive(0, into)``: `Receiver.receive_into` blocks in its thread,
and fills ``into``. With ``Borrow`` it gets the sender's own memory, until its next operation.
"""
