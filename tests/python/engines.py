# SPDX-License-Identifier: Apache-2.0
"""The two engines that cases about tensors run with. Whoever inherits one has a `folder`, a `build`, and a `fill(client)` that imports
its models."""
import tempfile

import hearthd
import tap


class Embedded:
    """In this process."""

    @classmethod
    def setUpClass(cls):
        cls.h = hearthd.Client(cls.folder + '/store', device='cpu:mem=1GiB,threads=1')
        cls.fill(cls.h)

    @classmethod
    def tearDownClass(cls):
        cls.h.close()

    def another(self):
        h = hearthd.Client(tempfile.mkdtemp(dir=self.folder), device='cpu:mem=256MiB,threads=1')
        self.fill(h)
        return h


class Daemon:
    """A hearthd's."""

    @classmethod
    def setUpClass(cls):
        cls.daemon = tap.Daemon(cls.build)
        cls.url = f'ipc://{cls.daemon.folder}/sock'
        cls.h = hearthd.Client(cls.url)
        cls.fill(cls.h)

    @classmethod
    def tearDownClass(cls):
        cls.h.close()
        cls.daemon.stop()

    def another(self):
        return hearthd.Client(self.url)
