#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""The Python package as tests and benches want it: a given library, no largest batch."""
import os
import sys

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), '..', 'client', 'python'))
import hearthd  # noqa: E402
from hearthd._library import MAX_RANK  # noqa: E402,F401
from hearthd._memory import CODES as HEARTH_DTYPE, DTYPES  # noqa: E402,F401

Error = hearthd.Error
ENOTSUP = hearthd.NotSupported.code


class Hearth(hearthd.Client):
    """A connection: embedded on a store, or to the server at `url`."""

    def __init__(self, path, store='', url='inproc://', device='cpu:threads=2'):
        os.environ['HEARTH_LIBRARY'] = path
        super().__init__(store if url == 'inproc://' else url, device=device)

    def load(self, name, path):
        return self.import_model(name, path, max_batch=0)
