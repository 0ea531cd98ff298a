#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""K-means against scikit-learn's, from the same start. SKIP where there is no scikit-learn. usage: tests/bench/kmeans_test.py [BUILD]"""
import os
import subprocess
import sys
import tempfile
import unittest

sys.path.insert(0, os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
import tap  # noqa: E402

BUILD = os.environ.get('HEARTH_BUILD') or (sys.argv[1] if len(sys.argv) > 1 else 'build')
PYTHON = os.path.expanduser('~/.cache/hearth-kmeans/bin/python3')


def fit(x, start, iterations, tolerance=0.0, isa=None):
    """hearth's (inertia, iterations, labels, centroids)."""
    with tempfile.TemporaryDirectory(prefix='hearth-kmeans-') as folder:
        x.tofile(f'{folder}/points')
        start.tofile(f'{folder}/start')
        r = subprocess.run([f'{BUILD}/tests/bench/kmeans_bench', *map(str, x.shape), str(len(start)), str(iterations), '2',
                            f'{folder}/points', f'{folder}/start', str(tolerance)], input='fit\n', stdout=subprocess.PIPE,
                           text=True, check=True, env={**os.environ, **({'HEARTH_ISA': isa} if isa else {})})
        _, _, inertia, done = r.stdout.split()
        return (float(inertia), int(done), numpy.fromfile(f'{folder}/start.labels', numpy.uint32),
                numpy.fromfile(f'{folder}/start.centroids', numpy.float64).reshape(start.shape))


class AsScikitLearn(unittest.TestCase):
    def same(self, x, start, iterations, tolerance=0.0, isa=None):
        inertia, done, labels, centroids = fit(x, start, iterations, tolerance, isa)
        model = KMeans(len(start), init=start, n_init=1, max_iter=iterations, tol=tolerance).fit(x)
        self.assertEqual(done, model.n_iter_)
        self.assertLess(abs(inertia / model.inertia_ - 1), 1e-5)
        self.assertGreaterEqual(numpy.mean(labels == model.labels_), 0.9999)
        return centroids, model.cluster_centers_

    def test_uniform_points(self):
        x = random.random((40000, 30), dtype=numpy.float32) * 255
        for k in (1, 5, 64, 300):
            for isa in ('avx512', 'avx2', 'sse2'):
                with self.subTest(k=k, isa=isa):
                    self.same(x, x[:k], 8, isa=isa)

    def test_clouds_until_they_converge(self):
        centre = random.normal(0, 10, (25, 12))
        x = (centre[random.integers(0, 25, 30000)] + random.normal(0, 3, (30000, 12))).astype(numpy.float32)
        for tolerance in (1e-4, 1e-2):
            self.same(x, x[:25], 300, tolerance)

    def test_empty_clusters(self):
        x = random.random((5000, 4), dtype=numpy.float32)
        start = numpy.concatenate([x[:3], 100 + x[:1], 200 + x[:1]])
        ours, theirs = self.same(x, start, 1)
        order = [a[numpy.lexsort(a.T)] for a in (ours, theirs.astype(numpy.float64))]  # who takes which is open there
        self.assertLess(abs(order[0] - order[1]).max(), 1e-5)

    def test_a_far_origin(self):
        x = random.normal(0, 1, (20000, 8)).astype(numpy.float32) + numpy.float32(1000)
        self.same(x, x[:20], 10)


if __name__ == '__main__':
    if not tap.use_python('sklearn', PYTHON):
        print("1..0 # SKIP no scikit-learn (python3 -m venv ~/.cache/hearth-kmeans, pip install scikit-learn)")
        sys.exit(0)
    import numpy
    from sklearn.cluster import KMeans
    random = numpy.random.default_rng(3)
    sys.exit(tap.run([AsScikitLearn]))
