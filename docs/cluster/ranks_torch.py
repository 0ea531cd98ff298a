#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""One training job on several nodes, summed by torch.distributed. Each rank asks its node's hearthd ($HEARTH_SERVER).
usage: torchrun --nproc-per-node 1 --nnodes N .. ranks_torch.py MODEL DATA NAME"""
import sys

import hearthd
import torch
import torch.distributed as dist

dist.init_process_group('gloo')


def all_reduce(array):
    dist.all_reduce(torch.from_numpy(array))


def broadcast(array, root):
    dist.broadcast(torch.from_numpy(array), root)


model, data, name = sys.argv[1:]
with hearthd.Client() as h, hearthd.Exchange(dist.get_rank(), dist.get_world_size(), all_reduce, broadcast) as exchange:
    trained = h.train(model, data, loss='mse', optimizer='momentum', lr=0.01, batch=16, epochs=4, seed=3, save_as=name, exchange=exchange)
    if trained is not None:
        print(f'{trained.model}:{trained.version} after {len(trained.losses)} steps, loss {trained.losses[-1]:.6g}')
dist.destroy_process_group()
