"""Collective operations as programs of messages, without clocks or clusters.

`messages` defines what a program is. `all_reduce` (in `ring`) leaves a weighted sum of all ranks'
arrays on each of them, `all_gather` a list of small ones, `broadcast` that of one rank. `adasum`
has the formula of which `adasum_tree` (over `halving`) and `adasum_linear` are programs; both end
with a `multicast` of the parts of the result. `codec` halves the bytes. `combine` chooses by the
``[combine]`` section of a run file, and gives the factors of a model merge.
"""
