#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""One training job on several nodes, summed by mpi4py. Each rank asks its node's hearthd ($HEARTH_SERVER).
usage: mpirun -n N python3 ranks_mpi4py.py MODEL DATA NAME"""
import sys

import hearthd
from mpi4py import MPI

ranks = MPI.COMM_WORLD


def all_reduce(array):
    ranks.Allreduce(MPI.IN_PLACE, array)


model, data, name = sys.argv[1:]
with hearthd.Client() as h, hearthd.Exchange(ranks.rank, ranks.size, all_reduce, ranks.Bcast) as exchange:
    try:
        trained = h.train(model, data, loss='mse', optimizer='momentum', lr=0.01, batch=16, epochs=4, seed=3, save_as=name, exchange=exchange)
    except BaseException as e:
        print(f'rank {ranks.rank}: {e}', file=sys.stderr)
        ranks.Abort(1)  # the others wait for this one
    if trained is not None:
        print(f'{trained.model}:{trained.version} after {len(trained.losses)} steps, loss {trained.losses[-1]:.6g}')
