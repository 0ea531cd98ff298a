# SPDX-License-Identifier: Apache-2.0
"""What predict_test.py and spark_test.py share: a server whose engine is a process of its own, to be killed, and models."""
import os
import signal
import subprocess
import time

import onnx_small
import tap

PATIENCE = 120


class Server:
    """hearthd on a store of its own, with its engine in a child process."""

    def __init__(self, build, folder, name, *flags):
        self.folder = os.path.join(folder, name)
        os.mkdir(self.folder)
        self.url = f'ipc://{self.folder}/sock'
        self.command = [build + '/hearthd', '--store', self.folder + '/store', '--listen', self.url, '--engine-process', 'child', '--device',
                        'cpu:mem=1GiB,threads=1', *flags]
        self.start()

    def start(self):
        self.process = subprocess.Popen(self.command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
        assert ' ready: ' in self.process.stdout.readline()

    def engine(self):
        """The process of the engine, once there is one."""
        until = time.monotonic() + PATIENCE
        while not (found := tap.children(self.process.pid)):
            assert time.monotonic() < until, 'there is no engine'
            time.sleep(0.002)
        return found[0]

    def kill_engine(self):
        """Kills the engine; returns when there is another."""
        pid, until = self.engine(), time.monotonic() + PATIENCE
        os.kill(pid, signal.SIGKILL)
        while self.engine() == pid:
            assert time.monotonic() < until, 'the engine stays'
            time.sleep(0.002)

    def restart(self, how=signal.SIGTERM):
        self.stop(how)
        self.start()

    def stop(self, how=signal.SIGTERM):
        self.process.send_signal(how)
        self.process.stdout.close()
        return self.process.wait(PATIENCE)


def two_inputs():
    """double = 2 a [n], square = b^2 [n, 3]."""
    return onnx_small.graph([('Add', ['a', 'a'], ['double'], {}), ('Mul', ['b', 'b'], ['square'], {})], [('a', 'FP32', ('n',)), ('b', 'FP32', ('n', 3))],
                            [('double', 'FP32', ('n',)), ('square', 'FP32', ('n', 3))])


def product(rows, columns, weights):
    """y = x w; weights: w's bytes, FP32 [rows, columns]. As onnx_small.graph, without a list of the values."""
    i, b = onnx_small._int, onnx_small._bytes  # pylint: disable=protected-access
    w = i(1, rows) + i(1, columns) + i(2, 1) + b(8, b'w') + b(9, weights)
    node = b(1, b'x') + b(1, b'w') + b(2, b'y') + b(4, b'MatMul')
    return onnx_small._model([node], [onnx_small._value('x', 'FP32', ('n', rows))], [onnx_small._value('y', 'FP32', ('n', columns))], [w])
