#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Requests per second over HTTP, as perf_analyzer counts them, with a model that copies its input: what serving itself costs.

usage: perf_http.py BUILD_DIR [--also HOST:PORT] [--rounds N]      needs `make deps-clients`; wrk (Debian) for health checks
--also measures another server of the Open Inference Protocol beside it, which has a model "ident" of INPUT0 and OUTPUT0 of FP32 [-1], in
turns, test by test. Client and server share the machine's cores.
"""
import argparse
import csv
import json
import os
import re
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
import urllib.request

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), '..'))
import base64  # noqa: E402
import tap  # noqa: E402
from onnx_small import identity  # noqa: E402

# name, elements, concurrency, further arguments
TESTS = [('12 bytes, 1 client', 3, 1, []),
         ('12 bytes, 16 clients', 3, 16, []),
         ('600 KB, 8 clients, socket', 150000, 8, []),
         ('600 KB, 8 clients, shared memory', 150000, 8, ['--shared-memory', 'system', '--output-shared-memory-size', '600000'])]
WINDOW_MS = 1000  # perf_analyzer keeps every request of a window in memory


def analyze(address, elements, concurrency, more):
    home = tap.clients_folder()
    library = os.path.join(home, 'lib', os.listdir(home + '/lib')[0], 'site-packages', 'nvidia', 'cuda_runtime', 'lib')
    with tempfile.NamedTemporaryFile(suffix='.csv') as out:
        command = [home + '/bin/perf_analyzer', '-m', 'ident', '-u', address, '--shape', f'INPUT0:{elements}', '-f', out.name, '-r', '3',
                   '-s', '1000', '-p', str(WINDOW_MS), '--concurrency-range', str(concurrency), *more]
        run = subprocess.Popen(command, env={**os.environ, 'LD_LIBRARY_PATH': library}, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
                               text=True)
        time.sleep(1)
        try:  # its load would starve the one thread that ends the window
            os.setpriority(os.PRIO_PROCESS, run.pid, -20)
        except OSError:
            pass
        said, _ = run.communicate()
        if run.returncode != 0:
            sys.exit(said)
        row = next(csv.DictReader(out.file.read().decode().splitlines()))
    return float(row['Inferences/Second']), float(row['p50 latency']), float(row['p99 latency'])


def health(address, connections):
    run = subprocess.run(['wrk', '-t1', f'-c{connections}', '-d2', f'http://{address}/v2/health/live'], check=True, capture_output=True,
                         text=True)
    return float(re.search(r'Requests/sec:\s+([0-9.]+)', run.stdout).group(1)), 0.0, 0.0


def resident(pid):
    """Of the process and its children, each with all that it shares."""
    with open(f'/proc/{pid}/status', encoding='utf-8') as f:
        total = int(re.search(r'VmRSS:\s+(\d+)', f.read()).group(1)) / 1024
    for task in os.listdir(f'/proc/{pid}/task'):
        with open(f'/proc/{pid}/task/{task}/children', encoding='utf-8') as f:
            total += sum(resident(int(child)) for child in f.read().split())
    return total


def main():
    p = argparse.ArgumentParser()
    p.add_argument('build')
    p.add_argument('--also')
    p.add_argument('--rounds', type=int, default=3)
    p.add_argument('--only', type=int)
    p.add_argument('--set', action='append', default=[])
    a = p.parse_args()
    daemon = tap.Daemon(os.path.abspath(a.build), '--allow-client-shm', 'true', *[w for s in a.set for w in ('--set', s)])
    body = {'parameters': {'config': '{"max_batch_size":0}', 'file:1/model.onnx': base64.b64encode(identity()).decode()}}
    urllib.request.urlopen(f'http://{daemon.address}/v2/repository/models/ident/load', json.dumps(body).encode()).read()
    print(f'idle: {resident(daemon.process.pid):.1f} MB resident')
    tests = [(name, lambda s, t=t: analyze(s, *t)) for name, *t in TESTS]
    if shutil.which('wrk'):
        tests.append(('health checks, 16 connections', lambda s: health(s, 16)))
    for i, (name, measure) in enumerate(tests):
        if a.only is not None and i != a.only:
            continue
        rows = {s: [] for s in [daemon.address] + ([a.also] if a.also else [])}
        for _ in range(a.rounds):
            for s, got in rows.items():
                got.append(measure(s))
        medians = {s: [statistics.median(c) for c in zip(*got)] for s, got in rows.items()}
        line = ' | '.join(f'{m[0]:8.0f}/s' + (f' p50 {m[1]:.0f} p99 {m[2]:.0f} us' if m[1] else '') for m in medians.values())
        ratio = f' | {medians[daemon.address][0] / medians[a.also][0]:.2f}x' if a.also else ''
        print(f'{name:34} {line}{ratio}', flush=True)
    print(f'after: {resident(daemon.process.pid):.1f} MB resident')
    daemon.stop()


if __name__ == '__main__':
    main()
