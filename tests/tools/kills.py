#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""tests/remote/kill_test.py at many random moments. usage: tests/tools/kills.py [--kills N] [--seed N] [--ways tcp,tls+tcp,https]
[--build DIR], from the root."""
import argparse
import os
import sys

HERE = os.path.dirname(os.path.abspath(__file__))


def main():
    parser = argparse.ArgumentParser(description='kills clients and servers at random moments')
    parser.add_argument('--kills', type=int, default=50, help='of uploads, of exports, of training jobs, and over ipc, each (50)')
    parser.add_argument('--seed', type=int, default=1)
    parser.add_argument('--ways', default='tcp,tls+tcp,https', help='in turns; http, too')
    parser.add_argument('--build', default='build')
    a = parser.parse_args()
    os.environ.update(HEARTH_KILLS=str(a.kills), HEARTH_KILLS_SEED=str(a.seed), HEARTH_KILLS_WAYS=a.ways)
    test = os.path.join(os.path.dirname(HERE), 'remote', 'kill_test.py')
    os.execv(sys.executable, [sys.executable, test, a.build])


main()
