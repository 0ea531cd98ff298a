#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""hearthd.cluster.KMeans: scikit-learn's checks of estimators, and its results. Speaks TAP.
usage: tests/bench/kmeans_estimator_test.py BUILD_DIR, from the root. Needs scikit-learn: python3 -m venv ~/.cache/hearth-kmeans &&
~/.cache/hearth-kmeans/bin/pip install scikit-learn"""
import os
import pickle
import sys
import tempfile
import unittest
import warnings

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path[:0] = [os.path.dirname(HERE), os.path.join(HERE, '..', '..', 'client', 'python')]
import tap  # noqa: E402

BUILD = os.path.abspath(sys.argv[1] if len(sys.argv) > 1 else 'build')
PYTHON = os.path.expanduser('~/.cache/hearth-kmeans/bin/python')
os.environ['HEARTH_LIBRARY'] = os.path.join(BUILD, 'libhearth.so')
os.environ.pop('HEARTH_SERVER', None)


class Estimator(unittest.TestCase):
    def test_scikit_learns_checks(self):
        warnings.simplefilter('ignore')
        check_estimator(KMeans(n_clusters=3, max_iter=20))

    def test_as_scikit_learn(self):
        x = numpy.random.default_rng(3).random((20000, 20), numpy.float32)
        for k in (5, 64):
            ours = KMeans(k, init=x[:k], max_iter=8, tol=0).fit(x)
            theirs = cluster.KMeans(k, init=x[:k], n_init=1, max_iter=8, tol=0).fit(x)
            self.assertEqual(ours.n_iter_, theirs.n_iter_)
            self.assertLess(abs(ours.inertia_ / theirs.inertia_ - 1), 1e-5)
            self.assertGreaterEqual((ours.labels_ == theirs.labels_).mean(), 0.9999)
            self.assertLess(abs(ours.cluster_centers_ - theirs.cluster_centers_).max(), 1e-4)
            self.assertTrue((ours.predict(x) == ours.labels_).all())
            self.assertLess(abs(ours.transform(x[:50]) - theirs.transform(x[:50])).max(), 1e-3)

    def test_silhouette(self):
        """Rodinia's size: 8,192 points of 100 columns, from the same start."""
        rng = numpy.random.default_rng(1)
        x = (rng.normal(0, 3, (16, 100))[rng.integers(0, 16, 8192)] + rng.normal(0, 4, (8192, 100))).astype(numpy.float32)
        ours = KMeans(16, init=x[:16]).fit(x)
        theirs = cluster.KMeans(16, init=x[:16], n_init=1).fit(x)
        scores = [silhouette_score(x, m.labels_) for m in (ours, theirs)]
        print(f'# silhouette {scores[0]:.5f}, scikit-learn {scores[1]:.5f}', flush=True)
        self.assertLess(abs(scores[0] - scores[1]), 0.005)

    def test_a_server_and_pickle(self):
        with tempfile.TemporaryDirectory() as folder:
            x = numpy.random.default_rng(3).random((500, 4), numpy.float32)
            model = KMeans(3, server=folder, save_as='groups', budget='64MiB', random_state=1).fit(x)
            self.assertEqual(model.model_, 'groups:1')
            again = pickle.loads(pickle.dumps(model))
            self.assertTrue((again.predict(x) == model.labels_).all())
            again.server, again.model_ = None, 'gone:1'  # as in a process that has no such model
            self.assertTrue((again.predict(x) == model.labels_).all())


if __name__ == '__main__':
    if not tap.use_python('sklearn', PYTHON):
        print('1..0 # SKIP no scikit-learn (python3 -m venv ~/.cache/hearth-kmeans, pip install scikit-learn)')
        sys.exit(0)
    import numpy
    from hearthd.cluster import KMeans
    from sklearn import cluster
    from sklearn.metrics import silhouette_score
    from sklearn.utils.estimator_checks import check_estimator
    sys.exit(tap.run([Estimator]))
