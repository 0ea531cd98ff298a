#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""hearthd.spark.predict_udf against predict_batch_udf with an onnxruntime session in each worker: rows per second and memory per worker, without a
limit and where there is memory for few copies of the model, as Markdown tables.

usage: spark_bench.py --build BUILD [--models DIR] [--runs N] [--warm S] [--copies K,..] [NETWORK..]     NETWORK: alexnet, alexnet-head, resnet50 (all)
alexnet-head is AlexNet's classifier on features of 9,216 numbers: nearly all of its weights, and rows that Spark itself makes quickly.
PYTHON needs pyspark, onnxruntime, torch and torchvision. Each figure is of a Spark of its own, local[4], and a server of its own; columns are made
by Spark, not read. First the same job runs for --warm seconds: hearthd measures algorithms between its first requests, once for a store (others: at most
OTHERS_WARM). The limit
is a cgroup (version 1, memory) with Spark's Python workers and hearthd in it: what WORKERS workers without a model have at most (anonymous memory), and
K times what a session takes. onnxruntime has as many workers there as end the job, and its threads are the processors divided by its workers: with fewer
workers than fit, or with one thread, it would be slower. It needs root, and is left out without it.
"""
import argparse
import contextlib
import functools
import json
import math
import os
import shutil
import subprocess
import sys
import tempfile
import threading
import time

HERE = os.path.dirname(os.path.abspath(__file__))
PACKAGE = os.path.join(HERE, '..', '..', 'client', 'python')
ROWS = {'alexnet': (240, 2), 'alexnet-head': (1600, 2), 'resnet50': (96, 8)}  # rows, and of a request
SHAPES = {'alexnet-head': [9216]}  # of a row; else [3, 224, 224]
WORKERS = 4
CGROUPS = '/sys/fs/cgroup/memory'
OTHERS_WARM = 10  # seconds, for Java
PATIENCE = 80  # seconds: what reads its own program from disk again and again has no end


# ---- one engine, in a process of its own

def smaps(pid):
    """Bytes that are a process's own, and its share of what it has in common with others."""
    with open(f'/proc/{pid}/smaps_rollup', encoding='ascii') as f:
        fields = dict(line.split()[:2] for line in f if ':' in line.split()[0])
    return [1024 * (int(fields['Private_Clean:']) + int(fields['Private_Dirty:'])), 1024 * int(fields['Pss:'])]


def descendants(pid):
    found = []
    for task in os.listdir(f'/proc/{pid}/task'):
        with contextlib.suppress(OSError), open(f'/proc/{pid}/task/{task}/children', encoding='ascii') as f:
            for child in map(int, f.read().split()):
                found += [child, *descendants(child)]
    return found


def workers():
    """Spark's Python workers: the children of its daemon."""
    for pid in descendants(os.getpid()):
        with contextlib.suppress(OSError), open(f'/proc/{pid}/cmdline', 'rb') as f:
            if b'pyspark.daemon' in f.read():
                children = descendants(pid)
                if children:
                    return children
    return []


def onnxruntime_predict(path, threads):
    import onnxruntime
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads, options.inter_op_num_threads = threads, 1
    session = onnxruntime.InferenceSession(path, options, providers=['CPUExecutionProvider'])
    name = session.get_inputs()[0].name
    return lambda x: session.run(None, {name: x})[0]


def bare_predict():
    import numpy
    return lambda x: numpy.zeros((len(x), 1000), numpy.float32)


def one(engine, path, rows, batch, shape, runs, warm, folder, build, n_workers):
    from pyspark.ml.functions import predict_batch_udf
    from pyspark.sql import SparkSession, functions
    from pyspark.sql.types import ArrayType, FloatType
    daemon = None
    if engine == 'hearth':
        url = f'ipc://{folder}/sock'
        daemon = subprocess.Popen([folder + '/limited', build + '/hearthd', '--store', folder + '/store', '--listen', url, '--device', 'cpu:mem=2GiB,threads=2'],
                                  stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
        assert ' ready: ' in daemon.stdout.readline()
        os.environ['HEARTH_SERVER'] = url
    builder = SparkSession.builder.master(f'local[{n_workers}]').appName('bench')
    for key, value in {'spark.ui.enabled': 'false', 'spark.ui.showConsoleProgress': 'false', 'spark.driver.memory': '512m',
                       'spark.sql.execution.arrow.maxRecordsPerBatch': str(12 * batch), 'spark.task.maxFailures': '1',
                       'spark.driver.host': '127.0.0.1', 'spark.local.dir': folder}.items():
        builder = builder.config(key, value)
    spark = builder.getOrCreate()
    spark.sparkContext.setLogLevel('OFF')
    how = {'return_type': ArrayType(FloatType()), 'batch_size': batch, 'input_tensor_shapes': [shape]}
    if engine == 'hearth':
        from hearthd.spark import predict_udf
        predict = predict_udf('net', **how)
    else:
        predict = predict_batch_udf(functools.partial(onnxruntime_predict, path, max(1, os.cpu_count() // n_workers)) if engine == 'onnxruntime' else bare_predict, **how)

    def run(n):
        column = functions.array_repeat((functions.col('id') % 7).cast('float') / 7, math.prod(shape)).cast('array<float>')
        began = time.perf_counter()
        total = spark.range(n, numPartitions=n_workers).select(predict(column).alias('y')).select(functions.sum(functions.element_at('y', 1))).collect()
        return n / (time.perf_counter() - began), total[0][0]
    end = time.monotonic() + (warm if engine == 'hearth' else min(warm, OTHERS_WARM))
    run(4 * batch)
    while time.monotonic() < end:
        run(rows)
    figures = [run(rows) for _ in range(runs)]
    of = [smaps(pid) for pid in workers()]
    server = smaps(daemon.pid)[0] + sum(smaps(pid)[0] for pid in descendants(daemon.pid)) if daemon is not None else 0
    spark.stop()
    if daemon is not None:
        daemon.terminate()
        daemon.wait(60)
    return {'all': [f[0] for f in figures], 'rows_s': sorted(f[0] for f in figures)[len(figures) // 2], 'sum': figures[0][1], 'workers': len(of),
            'own': sum(m[0] for m in of) / max(1, len(of)), 'pss': sum(m[1] for m in of) / max(1, len(of)), 'server': server}


# ---- all of them

class Peak(threading.Thread):
    """The most anonymous memory of a group: what is read from files can be given back."""

    def __init__(self, group):
        super().__init__(daemon=True)
        self.group, self.bytes, self.ended = group, 0, threading.Event()
        self.start()

    def run(self):
        while not self.ended.wait(0.1):
            with open(self.group + '/memory.stat', encoding='ascii') as f:
                self.bytes = max(self.bytes, next(int(line.split()[1]) for line in f if line.startswith('total_rss ')))

    def end(self):
        self.ended.set()
        self.join()
        return self.bytes


def may_limit():
    try:
        os.mkdir(f'{CGROUPS}/hearth-bench-{os.getpid()}')
        os.rmdir(f'{CGROUPS}/hearth-bench-{os.getpid()}')
        return os.path.exists(f'{CGROUPS}/memory.limit_in_bytes')
    except OSError:
        return False


def measured(engine, path, rows, batch, shape, args, limit=None, group=None, n_workers=WORKERS):
    """The figures of one engine, with the most memory that its group had; None and why: it has none."""
    with tempfile.TemporaryDirectory(prefix='hearth-spark-bench-') as folder:
        command = [sys.executable, os.path.abspath(__file__), '--one', json.dumps([engine, path, rows, batch, shape, args.runs, args.warm, folder, args.build, n_workers])]
        join = f'echo $$ >{group}/cgroup.procs && ' if group else ''
        for name, program in (('limited', '"$@"'), ('python', f'{sys.executable} "$@"')):
            with open(f'{folder}/{name}', 'w', encoding='ascii') as f:
                f.write(f'#!/bin/sh\n{join}exec {program}\n')
            os.chmod(f'{folder}/{name}', 0o755)
        if engine == 'hearth':  # a store outlives jobs: it has the model before
            subprocess.run([args.build + '/hearth', '--store', folder + '/store', 'import', 'net', path], check=True, stdout=subprocess.DEVNULL)
        if group is not None:
            os.mkdir(group)
            with open(group + '/memory.limit_in_bytes', 'w', encoding='ascii') as f:
                f.write(str(limit or -1))
            sampled = Peak(group)
        env = {**os.environ, 'PYTHONPATH': PACKAGE, 'HEARTH_LIBRARY': args.build + '/libhearth.so', 'PYSPARK_PYTHON': folder + '/python',
               'OMP_NUM_THREADS': '1', 'SPARK_LOCAL_IP': '127.0.0.1'}
        p = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=env, start_new_session=True)
        try:
            out, err = p.communicate(timeout=args.warm + PATIENCE)
            code = p.returncode
        except subprocess.TimeoutExpired:
            code, out, err = 'no end', '', ''
        peak, left = 0, []
        if group is not None:
            peak = sampled.end()
            until = time.monotonic() + 60
            while time.monotonic() < until:  # what a killed Spark has left is of this group, and nobody else's
                with open(group + '/cgroup.procs', encoding='ascii') as f:
                    left = f.read().split()
                if not left:
                    break
                for pid in left:
                    with contextlib.suppress(OSError):
                        os.kill(int(pid), 9)
                time.sleep(0.2)
            os.rmdir(group)
        if code != 0:
            with contextlib.suppress(OSError):
                os.killpg(p.pid, 9)
        p.stdout.close()
        p.stderr.close()
    line = out.strip().split('\n')[-1]
    if code != 0 or not line.startswith('{'):
        return None, f'exit {code}: {err.strip().split(chr(10))[-1][:200]}'
    return {**json.loads(line), 'peak': peak}, ''


def main():
    if sys.argv[1:2] == ['--one']:
        sys.path.insert(0, PACKAGE)
        print(json.dumps(one(*json.loads(sys.argv[2]))), flush=True)
        return 0
    p = argparse.ArgumentParser()
    p.add_argument('networks', nargs='*', default=list(ROWS))
    p.add_argument('--build', default='build')
    p.add_argument('--models', default=os.path.expanduser('~/.cache/hearth-bench-models'))
    p.add_argument('--runs', type=int, default=1)
    p.add_argument('--warm', type=float, default=60)
    p.add_argument('--copies', default='1,1.6,2.5,4')
    args = p.parse_args()
    args.build = os.path.abspath(args.build)
    if shutil.which('java') is None:
        print('Java is not installed')
        return 1
    subprocess.run([sys.executable, os.path.join(HERE, '..', 'tools', 'make_models.py'), args.models, *args.networks], check=True)
    groups = may_limit()
    print('| network | memory | rows/s: no model | onnxruntime | hearth | ratio | MB a worker of its own: bare | onnxruntime | hearth | PSS beyond bare: hearth | '
          'server |\n|---|---|---|---|---|---|---|---|---|---|---|', flush=True)
    for name in args.networks:
        path, (rows, batch), shape = os.path.join(args.models, name + '.onnx'), ROWS[name], SHAPES.get(name, [3, 224, 224])
        group = f'{CGROUPS}/hearth-bench-{os.getpid()}' if groups else None
        found = {e: measured(e, path, rows, batch, shape, args, group=group) for e in ('bare', 'onnxruntime', 'hearth')}
        missing = {e: why for e, (r, why) in found.items() if r is None}
        if missing:
            print(f'| {name} | no figures: {missing} |', flush=True)
            continue
        bare, ort, ours = (found[e][0] for e in ('bare', 'onnxruntime', 'hearth'))
        assert abs(ort['sum'] - ours['sum']) <= 1e-3 * max(1.0, abs(ort['sum'])), (ort['sum'], ours['sum'])
        print(f"| {name} | no limit | {bare['rows_s']:.1f} | {ort['rows_s']:.1f} | {ours['rows_s']:.1f} | {ours['rows_s'] / ort['rows_s']:.2f} | {bare['own'] / 1e6:.1f} | "
              f"{ort['own'] / 1e6:.1f} | {ours['own'] / 1e6:.1f} | {(ours['pss'] - bare['pss']) / 1e6:.1f} | {ours['server'] / 1e6:.0f} |", flush=True)
        if not groups:
            print(f'| {name} | a limit | not run: no cgroup can be made here |', flush=True)
            continue
        copy = ort['own'] - bare['own']
        for copies in map(float, args.copies.split(',')):
            limit = int(bare['peak'] + copies * copy)
            with_limit = functools.partial(measured, path=path, rows=rows, batch=batch, shape=shape, args=args, limit=limit, group=group)
            tried = ((n, with_limit('onnxruntime', n_workers=n)[0]) for n in range(WORKERS, 0, -1))
            n, theirs = next((t for t in tried if t[1] is not None), (0, None))
            ours, why = with_limit('hearth')
            said = [f"{theirs['rows_s']:.1f} ({n} workers)" if theirs else 'no end', f"{ours['rows_s']:.1f}" if ours else why,
                    f"{ours['rows_s'] / theirs['rows_s']:.2f}" if ours and theirs else '-']
            print(f"| {name} | {limit / 1e6:.0f} MB ({bare['peak'] / 1e6:.0f} bare, {copies:g} x {copy / 1e6:.0f}) | | {' | '.join(said)} |", flush=True)
    return 0


if __name__ == '__main__':
    sys.exit(main())
