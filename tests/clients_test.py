#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Clients that others wrote, unmodified, against hearthd: tritonclient.http, its asyncio form, and perf_analyzer. Speaks TAP.

usage: tests/clients_test.py BUILD_DIR, from the root. The packages come with `make deps-clients`; without them all is skipped.
"""
import asyncio
import csv
import json
import os
import subprocess
import sys
import unittest

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path.insert(0, HERE)
sys.dont_write_bytecode = True
import tap  # noqa: E402

if not tap.use_python('tritonclient.http', tap.clients_folder() + '/bin/python'):
    print('1..0 # SKIP tritonclient is not installed (make deps-clients)')
    sys.exit(0)

import numpy as np  # noqa: E402
import tritonclient.http as triton  # noqa: E402
import tritonclient.http.aio as triton_aio  # noqa: E402
from tritonclient.utils import InferenceServerException, np_to_triton_dtype  # noqa: E402
from tritonclient.utils import shared_memory as shm  # noqa: E402
from onnx_small import identity  # noqa: E402

BUILD = os.path.abspath(sys.argv[1] if len(sys.argv) > 1 else 'build')
NUMPY = {'FP32': np.float32, 'FP64': np.float64, 'FP16': np.float16, 'BOOL': np.bool_, 'INT8': np.int8, 'INT16': np.int16,
         'INT32': np.int32, 'INT64': np.int64, 'UINT8': np.uint8, 'UINT16': np.uint16, 'UINT32': np.uint32, 'UINT64': np.uint64}
DAEMON = None


def setUpModule():
    global DAEMON  # pylint: disable=global-statement
    DAEMON = tap.Daemon(BUILD, '--allow-client-shm', 'true', '--set', 'trace.file=' + os.path.join(
        os.environ.get('TMPDIR', '/tmp'), f'hearth-clients-{os.getpid()}.trace'))
    client = triton.InferenceServerClient(DAEMON.address)
    for datatype in list(NUMPY) + ['BF16']:
        load(client, datatype.lower(), identity(datatype))
    load(client, 'batch', identity('FP32', ('n', 3)), {'max_batch_size': 4})
    load(client, 'rebatch', identity('FP32', ('n', 3)), {'max_batch_size': 4})
    load(client, 'two', identity('FP32', ('n',), 2))
    client.close()


def tearDownModule():
    DAEMON.stop()
    os.unlink(os.path.join(os.environ.get('TMPDIR', '/tmp'), f'hearth-clients-{os.getpid()}.trace'))


def load(client, name, model, config=None):
    client.load_model(name, config=json.dumps(config or {'backend': 'onnxruntime'}), files={'file:1/model.onnx': model})


def tensor(name, array, binary=True, datatype=None):
    t = triton.InferInput(name, list(array.shape), datatype or np_to_triton_dtype(array.dtype))
    t.set_data_from_numpy(array, binary_data=binary)
    return t


def sample(datatype, n=7):
    if datatype == 'BOOL':
        return np.arange(n) % 3 == 0
    if datatype.startswith('FP'):
        return np.array([0, -1.5, 3.25, 1e4, -0.0, 0.1, 65504][:n], NUMPY[datatype])
    info = np.iinfo(NUMPY[datatype])
    return np.array([0, info.min, info.max, 1, 17, info.max - 1, 2][:n], NUMPY[datatype])


class Http(unittest.TestCase):
    def setUp(self):
        self.client = triton.InferenceServerClient(DAEMON.address, concurrency=4)

    def tearDown(self):
        self.client.close()

    def refused(self, words, call, *args, **more):
        with self.assertRaises(InferenceServerException) as e:
            call(*args, **more)
        self.assertIn(words, str(e.exception))

    def test_health_and_metadata(self):
        c = self.client
        self.assertTrue(c.is_server_live() and c.is_server_ready() and c.is_model_ready('fp32') and c.is_model_ready('fp32', '1'))
        self.assertFalse(c.is_model_ready('none'))
        server = c.get_server_metadata()
        self.assertEqual(server['name'], 'hearth')
        self.assertIn('statistics', server['extensions'])
        model = c.get_model_metadata('batch')
        self.assertEqual(model['inputs'], [{'name': 'INPUT0', 'datatype': 'FP32', 'shape': [-1, 3]}])
        config = c.get_model_config('batch')
        self.assertEqual((config['max_batch_size'], config['input'][0]['data_type'], config['input'][0]['dims']),
                         (4, 'TYPE_FP32', [3]))

    def test_datatypes(self):
        for datatype in NUMPY:
            x = sample(datatype)
            for as_binary in (True, False):
                for to_binary in (True, False):
                    with self.subTest(datatype=datatype, as_binary=as_binary, to_binary=to_binary):
                        outputs = [triton.InferRequestedOutput('OUTPUT0', binary_data=to_binary)]
                        if datatype == 'FP16' and not as_binary:
                            continue  # the client itself refuses it
                        if datatype == 'FP16' and not to_binary:
                            self.refused('FP16', self.client.infer, 'fp16', [tensor('INPUT0', x, as_binary)], outputs=outputs)
                            continue
                        y = self.client.infer(datatype.lower(), [tensor('INPUT0', x, as_binary)], outputs=outputs)
                        got = y.as_numpy('OUTPUT0')
                        self.assertEqual(got.dtype, x.dtype)
                        np.testing.assert_array_equal(got, x)

    def test_bf16(self):
        x = np.array([0.5, -2, 3], np.float32)  # all of them exact in BF16
        y = self.client.infer('bf16', [tensor('INPUT0', x, True, 'BF16')])
        np.testing.assert_array_equal(y.as_numpy('OUTPUT0'), x)

    def test_default_outputs_are_binary(self):
        y = self.client.infer('two', [tensor('INPUT0', sample('FP32')), tensor('INPUT1', 2 * sample('FP32'))], request_id='a "b"')
        self.assertEqual(y.get_response()['id'], 'a "b"')
        self.assertEqual(y.get_response()['outputs'][0]['parameters'], {'binary_data_size': 28})
        np.testing.assert_array_equal(y.as_numpy('OUTPUT1'), 2 * sample('FP32'))

    def test_async(self):
        x = [np.arange(i + 1, dtype=np.float32) for i in range(100)]
        asked = [self.client.async_infer('fp32', [tensor('INPUT0', a)], request_id=str(i)) for i, a in enumerate(x)]
        for i, request in enumerate(asked):
            y = request.get_result()
            self.assertEqual(y.get_response()['id'], str(i))
            np.testing.assert_array_equal(y.as_numpy('OUTPUT0'), x[i])

    def test_asyncio(self):
        async def many():
            async with triton_aio.InferenceServerClient(DAEMON.address) as c:
                self.assertTrue(await c.is_server_live())
                x = np.arange(1000, dtype=np.float32)
                return await asyncio.gather(*(c.infer('fp32', [tensor('INPUT0', x + i)]) for i in range(20)))
        for i, y in enumerate(asyncio.run(many())):
            np.testing.assert_array_equal(y.as_numpy('OUTPUT0'), np.arange(1000, dtype=np.float32) + i)

    def test_large(self):
        x = np.random.default_rng(1).random(5_000_000, np.float32)
        np.testing.assert_array_equal(self.client.infer('fp32', [tensor('INPUT0', x)]).as_numpy('OUTPUT0'), x)

    def test_compression(self):
        x = np.arange(10000, dtype=np.float32) // 100
        for there in ('gzip', 'deflate', None):
            for back in ('gzip', 'deflate', None):
                y = self.client.infer('fp32', [tensor('INPUT0', x)], request_compression_algorithm=there,
                                      response_compression_algorithm=back)
                np.testing.assert_array_equal(y.as_numpy('OUTPUT0'), x)

    def test_shared_memory(self):
        x = np.random.default_rng(2).random(100000, np.float32)
        key, n = f'/hearth_clients_{os.getpid()}', x.nbytes
        region = shm.create_shared_memory_region('both', key, 2 * n)
        try:
            shm.set_shared_memory_region(region, [x])
            self.client.register_system_shared_memory('both', key, 2 * n)
            self.refused("shared memory region 'both' already in manager", self.client.register_system_shared_memory, 'both', key, n)
            self.assertEqual(self.client.get_system_shared_memory_status(),
                             [{'name': 'both', 'key': key, 'offset': 0, 'byte_size': 2 * n}])
            inp, out = triton.InferInput('INPUT0', [len(x)], 'FP32'), triton.InferRequestedOutput('OUTPUT0')
            inp.set_shared_memory('both', n)
            out.set_shared_memory('both', n, n)
            y = self.client.infer('fp32', [inp], outputs=[out])
            self.assertEqual(y.get_output('OUTPUT0')['shape'], [len(x)])
            np.testing.assert_array_equal(shm.get_contents_as_numpy(region, np.float32, [len(x)], n), x)
            out.set_shared_memory('both', n - 4, n)
            self.refused('bytes to hold the results', self.client.infer, 'fp32', [inp], outputs=[out])
            inp.set_shared_memory('both', n, n + 4)
            self.refused('Invalid offset', self.client.infer, 'fp32', [inp])
            self.client.unregister_system_shared_memory('both')
            self.client.unregister_system_shared_memory()
            self.client.unregister_cuda_shared_memory()
            self.assertEqual(self.client.get_system_shared_memory_status(), [])
            self.refused('Unable to find system shared memory region', self.client.get_system_shared_memory_status, 'both')
        finally:
            shm.destroy_shared_memory_region(region)

    def test_classification(self):
        x = np.array([[1, 9, 5], [7, 0, 8]], np.float32)
        out = [triton.InferRequestedOutput('OUTPUT0', class_count=2)]
        got = self.client.infer('batch', [tensor('INPUT0', x)], outputs=out).as_numpy('OUTPUT0')
        self.assertEqual(got.tolist(), [[b'9.000000:1', b'5.000000:2'], [b'8.000000:2', b'7.000000:0']])

    def test_parameters(self):
        y = self.client.infer('fp32', [tensor('INPUT0', sample('FP32'))], priority=2, timeout=600_000_000, sequence_id=7,
                              sequence_start=True, sequence_end=True, parameters={'note': 'x', 'n': 3, 'p': 0.5, 'b': True})
        self.assertEqual(y.get_response()['model_version'], '1')
        self.refused('reserved', self.client.infer, 'fp32', [tensor('INPUT0', sample('FP32'))], parameters={'triton_x': 1})

    def test_statistics(self):
        before = self.client.get_inference_statistics('batch')['model_stats'][0]
        self.client.infer('batch', [tensor('INPUT0', np.ones((3, 3), np.float32))])
        after = self.client.get_inference_statistics('batch', '1')['model_stats'][0]
        self.assertEqual(after['inference_count'], before['inference_count'] + 3)
        self.assertEqual(after['inference_stats']['success']['count'], before['inference_stats']['success']['count'] + 1)
        self.assertIn('batch', [m['name'] for m in self.client.get_inference_statistics()['model_stats']])
        self.refused("requested model 'none' is not available", self.client.get_inference_statistics, 'none')

    def test_repository(self):
        c = self.client
        load(c, 'here', identity())
        state = {m['name']: m.get('state') for m in c.get_model_repository_index()}
        self.assertEqual(state['here'], 'READY')
        c.unload_model('here', unload_dependents=True)
        self.assertFalse(c.is_model_ready('here'))
        self.refused("Request for unknown model: 'here' is not found", c.infer, 'here', [tensor('INPUT0', sample('FP32'))])
        c.load_model('here')
        self.assertTrue(c.is_model_ready('here'))
        c.load_model('rebatch', config=json.dumps({'max_batch_size': 8}))
        self.assertEqual(c.get_model_config('rebatch')['max_batch_size'], 8)
        self.refused("failed to load 'none'", c.load_model, 'none')
        self.refused("failed to load 'bad'", c.load_model, 'bad', config='{}', files={'file:1/model.onnx': b'no model'})
        self.refused('N/model.onnx', c.load_model, 'bad', config='{}', files={'file:../../x': identity()})
        self.assertNotIn('bad', [m['name'] for m in c.get_model_repository_index()])

    def test_errors(self):
        c, x = self.client, sample('FP32')
        self.refused("Request for unknown model: 'none' is not found", c.infer, 'none', [tensor('INPUT0', x)])
        self.refused("'fp32' version 9 is not found", c.infer, 'fp32', [tensor('INPUT0', x)], model_version='9')
        self.refused('INT32', c.infer, 'fp32', [tensor('INPUT0', x.astype(np.int32))])
        self.refused('INPUT0', c.infer, 'fp32', [tensor('X', x)])
        self.refused("expected 2 inputs but got 1 inputs for model 'two'", c.infer, 'two', [tensor('INPUT0', x)])
        self.refused("unexpected shape for input 'INPUT0' for model 'batch'. Expected [-1,3], got [1,4]", c.infer, 'batch',
                     [tensor('INPUT0', np.ones((1, 4), np.float32))])
        self.refused("inference input 'INPUT0' data-type is 'INT32', but model 'fp32' expects 'FP32'", c.infer, 'fp32',
                     [tensor('INPUT0', x.astype(np.int32))])
        self.refused("inference request batch-size must be <= 4 for 'batch'", c.infer, 'batch',
                     [tensor('INPUT0', np.ones((5, 3), np.float32))])
        self.refused("unexpected inference output 'Y'", c.infer, 'fp32', [tensor('INPUT0', x)],
                     outputs=[triton.InferRequestedOutput('Y')])
        self.refused('request id: q', c.infer, 'two', [tensor('INPUT0', x)], request_id='q')

    def test_trace_settings(self):
        c = self.client
        self.assertEqual(c.get_trace_settings()['trace_level'], ['OFF'])
        got = c.update_trace_settings(model_name='int8', settings={'trace_level': ['TIMESTAMPS'], 'trace_rate': '1', 'trace_count': '1'})
        self.assertEqual((got['trace_level'], got['trace_rate']), (['TIMESTAMPS'], '1'))
        c.infer('int8', [tensor('INPUT0', sample('INT8'))])
        self.assertEqual(c.get_trace_settings('int8')['trace_count'], '0')
        got = c.update_trace_settings(model_name='int8', settings={'trace_level': None, 'trace_rate': None, 'trace_count': None})
        self.assertEqual((got['trace_level'], got['trace_rate'], got['trace_count']), (['OFF'], '1000', '-1'))

    def test_log_settings(self):
        before = self.client.get_log_settings()
        got = self.client.update_log_settings({'log_verbose_level': 1})
        self.assertEqual(got['log_verbose_level'], 1)
        got = self.client.update_log_settings({'log_verbose_level': 0, 'log_info': before['log_info']})
        self.assertEqual(got, before)

    def test_raw_bodies(self):
        body, length = triton.InferenceServerClient.generate_request_body([tensor('INPUT0', sample('FP32'))])
        import http.client
        conn = http.client.HTTPConnection('127.0.0.1', DAEMON.http)
        conn.request('POST', '/v2/models/fp32/infer', body, {'Inference-Header-Content-Length': str(length)})
        r = conn.getresponse()
        y = triton.InferenceServerClient.parse_response_body(
            r.read(), header_length=int(r.headers['Inference-Header-Content-Length']))
        np.testing.assert_array_equal(y.as_numpy('OUTPUT0'), sample('FP32'))
        conn.close()


class PerfAnalyzer(unittest.TestCase):
    """Each run ends by itself with exit code 0, and counts as many answers as it was told to ask for, or more."""

    @classmethod
    def setUpClass(cls):
        cls.program = os.path.join(tap.clients_folder(), 'bin', 'perf_analyzer')
        library = [os.path.join(p, 'nvidia', 'cuda_runtime', 'lib') for p in sys.path]
        cls.env = {**os.environ, 'LD_LIBRARY_PATH': ':'.join(p for p in library if os.path.isdir(p))}
        try:
            run = subprocess.run([cls.program, '--help'], env=cls.env, check=False, capture_output=True)
        except OSError as e:
            raise unittest.SkipTest(f'perf_analyzer cannot be run: {e.strerror}')
        if run.returncode == 127:
            raise unittest.SkipTest('perf_analyzer finds no libb64 or libcudart (make deps-clients)')

    def measure(self, *arguments, pollers=0):
        path = os.path.join(DAEMON.folder, 'perf.csv')
        command = [self.program, '-m', 'fp32', '-u', DAEMON.address, '-f', path, '-r', '3', '-s', '1000', *arguments]
        code, said = self.attempt(command, pollers)
        self.assertEqual(code, 0, said)
        with open(path, encoding='utf-8') as f:
            row = next(csv.DictReader(f))
        os.unlink(path)
        self.assertGreater(float(row['Inferences/Second']), 0)
        self.assertTrue(DAEMON.alive())
        return row, said

    def attempt(self, command, pollers):
        """Its exit code and words. It sometimes waits for ever though it has all its answers, and all of its threads that ask have ended: such a
        run counts for nothing. pollers: threads of it that read metrics."""
        for _ in range(3):
            with subprocess.Popen(command, env=self.env, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True) as p:
                try:
                    said = p.communicate(timeout=90)[0]
                    return p.returncode, said
                except subprocess.TimeoutExpired:
                    asking = len(os.listdir(f'/proc/{p.pid}/task')) - 1 - pollers
                    p.kill()
                    said = p.communicate()[0]
                    self.assertLessEqual(asking, 0, f'it still waits for answers: {said}')
        raise AssertionError(f'it never ends: {said}')

    def test_sync(self):
        row, said = self.measure('--shape', 'INPUT0:3', '--request-count', '300')
        self.assertIn('Server:', said)  # it found our statistics
        self.assertGreater(float(row['p99 latency']), 0)

    def test_async(self):
        self.measure('--shape', 'INPUT0:3', '--async', '--concurrency-range', '4', '--request-count', '300')

    def test_concurrency_16(self):
        row, _ = self.measure('--shape', 'INPUT0:3', '--concurrency-range', '16', '--request-count', '2000')
        self.assertEqual(row['Concurrency'], '16')

    def test_shared_memory(self):
        self.measure('--shape', 'INPUT0:150000', '--shared-memory', 'system', '--output-shared-memory-size', '600000',
                     '--concurrency-range', '2', '--request-count', '200')

    def test_metrics(self):
        # It wants metrics of a GPU: without one it says so and goes on.
        _, said = self.measure('--shape', 'INPUT0:3', '--collect-metrics', '--metrics-url', f'127.0.0.1:{DAEMON.metrics}/metrics',
                               '--metrics-interval', '50', '--request-count', '5000', pollers=1)
        self.assertIn('Server Prometheus Metrics', said)
        self.assertEqual([line for line in said.split('\n') if 'Unable to parse' in line and "'nv_gpu_" not in line], [])


if __name__ == '__main__':
    os.chdir(os.path.dirname(HERE))
    sys.exit(tap.run((Http, PerfAnalyzer)))
