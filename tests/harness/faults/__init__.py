"""Runs of the cluster's own code on virtual time, threads, network and disk, under seeded faults.

========================  ========================================================================
``loop``                  an event loop on a virtual clock, and threads that take turns in it
``disk``                  a directory that can be full, lose power, and whose writers can die
``machines``              worker processes, and Dask's client as the run driver sees it
``counting``              a model with a parameter for each row, which shows what it was trained on
``schedule``              faults: drawn from a seed, in words, and without those that do not matter
``invariants``            what must hold after every event, and at the end
``simulation``            one run, from its first start to its last
``life``                  hours of one scheduler and its workers, with run after run
``pace``                  what the others merge while one is frozen, slow or gone
``planted``               faults put into the product, to see whether they are found
========================  ========================================================================
"""
