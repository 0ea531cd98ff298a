#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""hearthd.spark.predict_udf against predict_batch_udf with an onnxruntime session in each worker, and with one of Triton's clients in each: rows per
second and memory per worker, without a limit and where there is memory for few copies of the model, as Markdown tables.

usage: spark_bench.py --build BUILD [--models DIR] [--runs N] [--warm S] [--copies K,..] [--triton COMMAND] [NETWORK..]
NETWORK: alexnet, alexnet-head, resnet50 (all)
alexnet-head is AlexNet's classifier on features of 9,216 numbers: nearly all of its weights, and rows that Spark itself makes quickly.
PYTHON needs pyspark, onnxruntime, torch and torchvision. Each figure is of a Spark of its own, local[4], and a server of its own; columns are made
by Spark, not read. First the same job runs for --warm seconds: hearthd measures algorithms between its first requests, once for a store (others: at most
OTHERS_WARM). The limit is a cgroup (version 1, memory) with Spark's Python workers and the server in it: what WORKERS workers without a model have at
most (anonymous memory), and K times what a session takes, of which hearthd's device has all but OWN. Each has as many workers there as end the job, and
onnxruntime's threads are the processors divided by its workers: with fewer workers than fit, or with one thread, it would be slower. It needs root, and is
left out without it. `COMMAND PORT REPOSITORY` runs a Triton server with its Python backend, whose Python has onnxruntime, with all processors for it; it
joins requests (dynamic_batching) and is in the group. PYTHON needs tritonclient[http] then.
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
OWN = 64 << 20  # bytes that hearthd and its workers have beside the device's, in a limit
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


TRITON = {'config.pbtxt': """name: "net"
backend: "python"
max_batch_size: 32
dynamic_batching { }
input [{ name: "x" data_type: TYPE_FP32 dims: [%(dims)s] }]
output [{ name: "y" data_type: TYPE_FP32 dims: [-1] }]
instance_group [{ kind: KIND_CPU count: 1 }]
""", '1/model.py': """import os
import numpy
import onnxruntime
import triton_python_backend_utils as pb

class TritonPythonModel:
    def initialize(self, args):
        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads, options.inter_op_num_threads = os.cpu_count(), 1
        self.session = onnxruntime.InferenceSession(%(path)r, options, providers=['CPUExecutionProvider'])
        self.name = self.session.get_inputs()[0].name

    def execute(self, requests):  # of one batch
        parts = [pb.get_input_tensor_by_name(r, 'x').as_numpy() for r in requests]
        y, at, made = self.session.run(None, {self.name: numpy.concatenate(parts)})[0], 0, []
        for x in parts:
            made.append(pb.InferenceResponse(output_tensors=[pb.Tensor('y', y[at:at + len(x)])]))
            at += len(x)
        return made
"""}


@contextlib.contextmanager
def triton_server(command, path, shape, folder):
    """Triton with the model; its URL, and the processes that it is."""
    import socket
    import urllib.request
    for name, text in TRITON.items():
        file = f'{folder}/triton/net/{name}'
        os.makedirs(os.path.dirname(file), exist_ok=True)
        with open(file, 'w', encoding='ascii') as f:
            f.write(text % {'path': path, 'dims': ', '.join(map(str, shape))})
    with socket.socket() as s:
        s.bind(('127.0.0.1', 0))
        port = s.getsockname()[1]
    server = subprocess.Popen([folder + '/limited', *command.split(), str(port), folder + '/triton'], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        until = time.monotonic() + PATIENCE
        while True:
            with contextlib.suppress(OSError), urllib.request.urlopen(f'http://127.0.0.1:{port}/v2/models/net/ready', timeout=5) as answer:
                if answer.status == 200:
                    break
            assert server.poll() is None and time.monotonic() < until, 'Triton does not start'
            time.sleep(0.2)
        yield f'127.0.0.1:{port}', server.pid
    finally:
        server.terminate()
        server.wait(60)


def triton_predict(url):
    import tritonclient.http as triton
    client = triton.InferenceServerClient(url)

    def predict(x):
        given = triton.InferInput('x', list(x.shape), 'FP32')
        given.set_data_from_numpy(x)
        return client.infer('net', [given]).as_numpy('y')
    return predict


def bare_predict():
    import numpy
    return lambda x: numpy.zeros((len(x), 1000), numpy.float32)


def one(engine, *args):
    if engine != 'triton':
        return with_engine(engine, *args)
    path, _, _, shape, _, _, folder, _, _, command, _ = args
    with triton_server(command, path, shape, folder) as (url, pid):
        return with_engine(engine, *args, functools.partial(triton_predict, url), pid)


def with_engine(engine, path, rows, batch, shape, runs, warm, folder, build, n_workers, _command, mem, make=bare_predict, server_pid=None):
    from pyspark.ml.functions import predict_batch_udf
    from pyspark.sql import SparkSession, functions
    from pyspark.sql.types import ArrayType, FloatType
    daemon = None
    if engine == 'hearth':
        url = f'ipc://{folder}/sock'
        daemon = subprocess.Popen([folder + '/limited', build + '/hearthd', '--store', folder + '/store', '--listen', url,
                                   '--device', f'cpu:mem={mem},threads=2'], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
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
        predict = predict_batch_udf(functools.partial(onnxruntime_predict, path, max(1, os.cpu_count() // n_workers)) if engine == 'onnxruntime' else make, **how)

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
    server_pid = daemon.pid if daemon is not None else server_pid
    server = smaps(server_pid)[0] + sum(smaps(pid)[0] for pid in descendants(server_pid)) if server_pid is not None else 0
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


def measured(engine, path, rows, batch, shape, args, limit=None, group=None, n_workers=WORKERS, mem=2 << 30):
    """The figures of one engine, with the most memory that its group had; None and why: it has none."""
    with tempfile.TemporaryDirectory(prefix='hearth-spark-bench-') as folder:
        command = [sys.executable, os.path.abspath(__file__), '--one', json.dumps([engine, path, rows, batch, shape, args.runs, args.warm, folder, args.build, n_workers, args.triton, mem])]
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


def most_workers(run, engine):
    """The figures with as many workers as end the job, and how many; None: one is too many."""
    return next(((n, r) for n, (r, _) in ((n, run(engine, n_workers=n)) for n in range(WORKERS, 0, -1)) if r is not None), (0, None))


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
    p.add_argument('--triton', metavar='COMMAND')
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
        tritons = functools.partial(measured, 'triton', path, rows, batch, shape, args, group=group)
        if args.triton:
            theirs, why = tritons()
            print(f"| {name} | Triton, no limit: {theirs['rows_s']:.1f} rows/s, {theirs['server'] / 1e6:.0f} MB of the server |" if theirs else
                  f'| {name} | Triton, no limit: {why} |', flush=True)
        print(f"| {name} | no limit | {bare['rows_s']:.1f} | {ort['rows_s']:.1f} | {ours['rows_s']:.1f} | {ours['rows_s'] / ort['rows_s']:.2f} | {bare['own'] / 1e6:.1f} | "
              f"{ort['own'] / 1e6:.1f} | {ours['own'] / 1e6:.1f} | {(ours['pss'] - bare['pss']) / 1e6:.1f} | {ours['server'] / 1e6:.0f} |", flush=True)
        if not groups:
            print(f'| {name} | a limit | not run: no cgroup can be made here |', flush=True)
            continue
        copy = ort['own'] - bare['own']
        for copies in map(float, args.copies.split(',')):
            limit = int(bare['peak'] + copies * copy)
            with_limit = functools.partial(measured, path=path, rows=rows, batch=batch, shape=shape, args=args, limit=limit, group=group, mem=int(copies * copy) - OWN)
            n, theirs = most_workers(with_limit, 'onnxruntime')
            m, ours = most_workers(with_limit, 'hearth')
            said = [f"{r['rows_s']:.1f} ({k} workers)" if r else 'no end' for k, r in ((n, theirs), (m, ours))]
            said.append(f"{ours['rows_s'] / theirs['rows_s']:.2f}" if ours and theirs else '-')
            if args.triton:
                triton, why = tritons(limit=limit)
                said.append(f"Triton: {triton['rows_s']:.1f}" if triton else f'Triton: {why}')
            print(f"| {name} | {limit / 1e6:.0f} MB ({bare['peak'] / 1e6:.0f} bare, {copies:g} x {copy / 1e6:.0f}) | | {' | '.join(said)} |", flush=True)
    return 0


if __name__ == '__main__':
    sys.exit(main())
