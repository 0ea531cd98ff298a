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
        self.command = [build + '/hearthd', '--store', tap.known_links(build, self.folder + '/store'), '--listen', self.url, '--engine-process', 'child',
                        '--device', 'cpu:mem=1GiB,threads=1', *flags]
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


def with_sum():
    """y = 2 x, FP32 [n], and the sum of x, one number for all rows."""
    return onnx_small.graph([('ReduceSum', ['x'], ['sum'], {'keepdims': 0}), ('Add', ['x', 'x'], ['y'], {})], [('x', 'FP32', ('n',))],
                            [('sum', 'FP32', ()), ('y', 'FP32', ('n',))])


def any_rank():
    """y = x, FP32, of which the file says no shape."""
    i, b = onnx_small._int, onnx_small._bytes  # pylint: disable=protected-access
    x, y = (b(1, name) + b(2, b(1, i(1, onnx_small.ELEMENT['FP32']))) for name in (b'x', b'y'))
    return onnx_small._model([b(1, b'x') + b(2, b'y') + b(4, b'Identity')], [x], [y])


def packed(columns):
    """y = x + 1, INT64 [n, columns], whose ones are numbers of a byte each in the file."""
    i, b = onnx_small._int, onnx_small._bytes  # pylint: disable=protected-access
    w = i(1, columns) + i(2, onnx_small.ELEMENT['INT64']) + b(7, bytes([1]) * columns) + b(8, b'w')
    node = b(1, b'x') + b(1, b'w') + b(2, b'y') + b(4, b'Add')
    x, y = (onnx_small._value(name, 'INT64', ('n', columns)) for name in 'xy')
    return onnx_small._model([node], [x], [y], [w])
