#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""K-means against scikit-learn, scikit-learn-intelex and faiss: the same random points (819,200 x 100 as in Rodinia), start and
number of iterations, in turns in one run. Each engine is a process that has read the points; a time is that of the fit alone, of
faiss without labels. Labels and inertia are compared with scikit-learn's in double. Prints medians of seconds, and of the best peer's time by hearth's of the same round. Where other programs
run, --threads 1 --cpu compares processor time.

usage: tests/bench/kmeans.py [BUILD] [--points N] [--k 5,64,1000] [--rounds 5] [--threads 2] [--cpu]
Needs: python3 -m venv ~/.cache/hearth-kmeans &&
       ~/.cache/hearth-kmeans/bin/pip install scikit-learn scikit-learn-intelex faiss-cpu
A peer that is missing is left out."""
import argparse
import os
import statistics
import subprocess
import sys
import tempfile
import time

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path.insert(0, os.path.dirname(HERE))
import tap  # noqa: E402

COLUMNS = 100
PEERS = {'scikit-learn': 'sklearn', 'scikit-learn-intelex': 'sklearnex', 'faiss': 'faiss'}
DOUBLE = 'double'


def peer(name, points, k, iterations, threads, path, start):
    """Fits once for each line of the standard input."""
    import numpy as np
    x = np.fromfile(path, np.float32).reshape(points, COLUMNS)
    begin = np.fromfile(start, np.float32).reshape(k, COLUMNS)
    labels = None
    if name == DOUBLE:
        x, begin = x.astype(np.float64), begin.astype(np.float64)
    if name == 'faiss':
        import faiss
        faiss.omp_set_num_threads(threads)
    elif name != 'scikit-learn-intelex':
        from sklearn.cluster import KMeans
    else:
        from sklearnex.cluster import KMeans
    for _ in sys.stdin:
        if name == 'faiss':
            model = faiss.Kmeans(COLUMNS, k, niter=iterations, max_points_per_centroid=points, min_points_per_centroid=1)
            began, cpu = time.perf_counter(), time.process_time()
            model.train(x, init_centroids=begin)
            seconds, cpu = time.perf_counter() - began, time.process_time() - cpu
            squared, labels = model.index.search(x, 1)
            inertia, done = float(squared.sum(dtype=np.float64)), iterations
        else:
            model = KMeans(k, init=begin, n_init=1, max_iter=iterations, tol=0, copy_x=False)
            began, cpu = time.perf_counter(), time.process_time()
            model.fit(x)
            seconds, cpu = time.perf_counter() - began, time.process_time() - cpu
            labels, inertia, done = model.labels_, model.inertia_, model.n_iter_
        print(seconds, cpu, inertia, done, flush=True)
    labels.astype(np.uint32).tofile(f'{start}.{name}')


class Engine:
    """A process that fits when it is asked."""

    def __init__(self, command, args):
        self.process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
                                        env={**os.environ, 'OMP_NUM_THREADS': str(args.threads)})
        self.cpu = args.cpu
        self.seconds, self.inertia = [], 0.0
        self.fit()
        self.seconds.clear()  # a first round warms up

    def fit(self):
        self.process.stdin.write('fit\n')
        self.process.stdin.flush()
        seconds, cpu, inertia, _ = self.process.stdout.readline().split()
        self.seconds.append(float(cpu if self.cpu else seconds))
        self.inertia = float(inertia)

    def end(self):
        self.process.stdin.close()
        return self.process.wait()


def compare(args, k, folder, what, engines):
    """Prints a row of the table."""
    import numpy as np
    for _ in range(args.rounds):
        for engine in engines.values():
            engine.fit()
    ours = engines['hearth']
    ratios = [min(e.seconds[i] for e in engines.values() if e is not ours) / ours.seconds[i] for i in range(args.rounds)]
    double = Engine([sys.executable, __file__, '--peer', DOUBLE, *what], args)
    if any(engine.end() for engine in (*engines.values(), double)):
        sys.exit('an engine failed')
    times = ' | '.join(f'{statistics.median(engines[name].seconds):.2f}' if name in engines else '-' for name in ['hearth', *PEERS])
    labels = [np.fromfile(f'{folder}/start.{end}', np.uint32) for end in ('labels', DOUBLE)]
    print(f'| {k} | {times} | {statistics.median(ratios):.2f} | {min(ratios):.2f} | '
          f'{abs(ours.inertia / double.inertia - 1):.1e} | {100 * np.mean(labels[0] == labels[1]):.4f} % |', flush=True)


def main():
    if sys.argv[1:2] == ['--peer']:
        peer(sys.argv[2], *map(int, sys.argv[3:7]), *sys.argv[7:])
        return
    parser = argparse.ArgumentParser()
    parser.add_argument('build', nargs='?', default='build')
    parser.add_argument('--points', type=int, default=819200)
    parser.add_argument('--iterations', type=int, default=20)
    parser.add_argument('--k', default='5,64,1000')
    parser.add_argument('--rounds', type=int, default=5)
    parser.add_argument('--threads', type=int, default=2)
    parser.add_argument('--cpu', action='store_true')
    parser.add_argument('--peers', default=','.join(PEERS))
    parser.add_argument('--python', default=os.path.expanduser('~/.cache/hearth-kmeans/bin/python3'))
    args = parser.parse_args()
    if not tap.use_python('sklearn', args.python):
        sys.exit(f'no scikit-learn in {args.python}: see the head of {sys.argv[0]}')
    import numpy as np
    peers = [name for name in args.peers.split(',') if subprocess.run(
        [sys.executable, '-c', f'import {PEERS[name]}'], check=False, stderr=subprocess.DEVNULL).returncode == 0]
    random = np.random.default_rng(1)
    x = random.random((args.points, COLUMNS), dtype=np.float32) * 255
    print(f'| k | hearth s | {" s | ".join(PEERS)} s | best / hearth | its minimum | inertia differs by | equal labels |\n'
          '|---:|---:|---:|---:|---:|---:|---:|---:|---:|', flush=True)
    with tempfile.TemporaryDirectory(prefix='hearth-kmeans-') as folder:
        x.tofile(f'{folder}/points')
        for k in map(int, args.k.split(',')):
            x[random.choice(args.points, k, replace=False)].tofile(f'{folder}/start')
            what = [str(n) for n in (args.points, k, args.iterations, args.threads)] + [f'{folder}/points', f'{folder}/start']
            engines = {'hearth': Engine([f'{args.build}/tests/bench/kmeans_bench', what[0], str(COLUMNS), what[1], what[2],
                                         *what[3:]], args)}
            for name in peers:
                engines[name] = Engine([sys.executable, __file__, '--peer', name, *what], args)
            compare(args, k, folder, what, engines)


if __name__ == '__main__':
    main()
