# SPDX-License-Identifier: Apache-2.0
"""K-means with scikit-learn's interface, computed by hearth. Needs scikit-learn.

    from hearthd.cluster import KMeans

    labels = KMeans(n_clusters=64, server='ipc:///run/hearth.sock').fit_predict(X)
"""
from __future__ import annotations

import functools
import os
import tempfile
from typing import Any

import numpy as np
from sklearn.base import BaseEstimator, ClusterMixin, TransformerMixin
from sklearn.metrics.pairwise import euclidean_distances, pairwise_distances_argmin
from sklearn.utils import check_random_state
from sklearn.utils.validation import check_is_fitted, validate_data

from ._client import Client
from ._errors import NotFound
from ._memory import read_safetensors


@functools.lru_cache(maxsize=None)
def _here() -> tuple[Client, tempfile.TemporaryDirectory[str]]:
    """An engine in this process, on a store that is gone with it."""
    folder = tempfile.TemporaryDirectory(prefix='hearth-cluster-')
    return Client(folder.name), folder


@functools.lru_cache(maxsize=8)
def _connected(server: str) -> Client:
    return Client(server)


class KMeans(TransformerMixin, ClusterMixin, BaseEstimator):  # type: ignore[misc]
    """sklearn.cluster.KMeans as a job of a hearth server.

    n_clusters, init ("k-means++", "random" or an array), max_iter, tol and random_state are scikit-learn's; one start is computed
    (n_init=1), in float32 with sums in double. `server` is a URL, or the folder of a store; without it $HEARTH_SERVER, or an engine
    in this process. `budget` limits the memory ("512MiB"): points are then read piece by piece. The result is the model `model_` on
    the server; `save_as` names it.

    Fitted attributes: cluster_centers_, labels_, inertia_, n_iter_, n_features_in_, model_.
    """

    def __init__(self, n_clusters: int = 8, *, init: Any = 'k-means++', max_iter: int = 300, tol: float = 1e-4, random_state: Any = None,
                 server: str | None = None, budget: str | None = None, save_as: str | None = None):
        self.n_clusters = n_clusters
        self.init = init
        self.max_iter = max_iter
        self.tol = tol
        self.random_state = random_state
        self.server = server
        self.budget = budget
        self.save_as = save_as

    def _client(self) -> Client:
        server = self.server or os.environ.get('HEARTH_SERVER')
        return _connected(server) if server else _here()[0]

    def _points(self, X: Any, reset: bool) -> np.ndarray:
        return validate_data(self, X, reset=reset, dtype=np.float32, order='C', accept_large_sparse=False)

    def fit(self, X: Any, y: Any = None) -> KMeans:
        """Finds the clusters of X; y is ignored."""
        X = self._points(X, reset=True)
        if X.shape[0] < self.n_clusters:
            raise ValueError(f'n_samples={X.shape[0]} should be >= n_clusters={self.n_clusters}.')
        init = self.init if isinstance(self.init, str) else np.asarray(self.init, np.float32)
        client = self._client()
        seed = int(check_random_state(self.random_state).randint(2**31 - 1))
        found = client.kmeans(X, k=self.n_clusters, init=init, iterations=self.max_iter, tolerance=self.tol, seed=seed,
                              budget=self.budget, save_as=self.save_as)
        self.model_ = f'{found.model}:{found.version}'
        self.inertia_ = float(found.summary['inertia'])
        self.n_iter_ = int(found.summary['iterations'])
        with tempfile.TemporaryDirectory(prefix='hearth-') as folder:
            path = os.path.join(folder, 'model.safetensors')
            client.export(self.model_, path)
            self.cluster_centers_ = read_safetensors(path)['centroids']
        self._n_features_out = self.n_clusters
        self.labels_ = self._labels(X)
        return self

    def _labels(self, X: np.ndarray) -> np.ndarray:
        try:
            return np.array(self._client().infer(self.model_, {'x': X})['label']).astype(np.int32)
        except NotFound:  # another process's, or removed
            return pairwise_distances_argmin(X, self.cluster_centers_).astype(np.int32)

    def predict(self, X: Any) -> np.ndarray:
        """The nearest centroid of each row."""
        check_is_fitted(self)
        return self._labels(self._points(X, reset=False))

    def transform(self, X: Any) -> np.ndarray:
        """The distances of each row from all centroids."""
        check_is_fitted(self)
        return euclidean_distances(self._points(X, reset=False), self.cluster_centers_)

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.transformer_tags.preserves_dtype = ['float32']
        return tags
