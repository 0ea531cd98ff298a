#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""hearthd's own memory after large requests of many clients over sockets: what they took is given back. Speaks TAP.
usage: tests/remote/heap_test.py BUILD_DIR, from the root."""
import os
import shutil
import sys
import tempfile
import threading
import time
import unittest

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
BUILD = os.path.abspath(sys.argv[1] if len(sys.argv) > 1 else 'build')
os.environ['HEARTH_LIBRARY'] = os.path.join(BUILD, 'libhearth.so')
sys.dont_write_bytecode = True
sys.path[:0] = [os.path.join(ROOT, 'client', 'python'), os.path.join(ROOT, 'tests'), os.path.join(ROOT, 'tests', 'remote')]
import tap  # noqa: E402

if __name__ == '__main__':
    tap.need_numpy()
import numpy as np  # noqa: E402
import onnx_small  # noqa: E402
import spark_server  # noqa: E402

import hearthd  # noqa: E402

MIB = 1 << 20
CLIENTS, REQUESTS, KEPT, PATIENCE = 8, 10, 16 * MIB, 60


def anonymous(pid):
    with open(f'/proc/{pid}/smaps_rollup', encoding='ascii') as f:
        return next(1024 * int(line.split()[1]) for line in f if line.startswith('Anonymous:'))


class Heap(unittest.TestCase):
    def test_large_requests(self):
        folder = tempfile.mkdtemp(prefix='hearth-heap-')
        self.addCleanup(shutil.rmtree, folder, True)
        server = spark_server.Server(BUILD, folder, 'one')
        with open(folder + '/identity.onnx', 'wb') as f:
            f.write(onnx_small.identity())
        with hearthd.Client(server.url) as c:
            c.import_model('identity', folder + '/identity.onnx')
            c.infer('identity', np.zeros(4, np.float32))
        before, bad = anonymous(server.process.pid), []

        def ask(k):
            try:
                with hearthd.Client(server.url, shared_memory=False) as c:
                    for i in range(REQUESTS):
                        x = np.full(MIB + 1000 * k, i, np.float32)  # 4 MiB
                        np.testing.assert_array_equal(c.infer('identity', x)['OUTPUT0'], x)
            except BaseException as e:  # pylint: disable=broad-except
                bad.append(e)
        threads = [threading.Thread(target=ask, args=(k,)) for k in range(CLIENTS)]
        for t in threads:
            t.start()
        for t in threads:
            t.join()
        self.assertEqual(bad, [])
        most, until = anonymous(server.process.pid) - before, time.monotonic() + PATIENCE
        while anonymous(server.process.pid) - before > KEPT and time.monotonic() < until:
            time.sleep(0.1)
        kept = anonymous(server.process.pid) - before
        print(f'# {most / MIB:.0f} MiB were kept, {kept / MIB:.0f} are', flush=True)
        self.assertLessEqual(kept, KEPT)
        self.assertEqual(server.stop(), 0)


if __name__ == '__main__':
    os.chdir(ROOT)
    sys.exit(tap.run((Heap,)))
