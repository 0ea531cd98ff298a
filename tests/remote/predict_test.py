#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""hearthd.predict, and what hearthd.spark computes without Spark: casts, shapes, retries by a clock that the test moves, and a model as a
function of several processes, whose engine and server are killed. Speaks TAP. usage: tests/remote/predict_test.py BUILD_DIR, from the root."""
import multiprocessing
import os
import pickle
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
import unittest
import warnings

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
BUILD = os.path.abspath(sys.argv[1] if len(sys.argv) > 1 else 'build')
PACKAGE, DIGITS = os.path.join(ROOT, 'client', 'python'), os.path.join(ROOT, 'tests', 'data', 'digits')
PATIENCE = 120
os.environ['HEARTH_LIBRARY'] = os.path.join(BUILD, 'libhearth.so')
for variable in ('HEARTH_SERVER', 'HEARTH_TOKEN', 'XDG_RUNTIME_DIR'):
    os.environ.pop(variable, None)
sys.dont_write_bytecode = True
sys.path[:0] = [PACKAGE, os.path.join(ROOT, 'tests'), os.path.join(ROOT, 'tests', 'remote')]
import tap  # noqa: E402

if __name__ == '__main__':
    tap.need_numpy()
import numpy as np  # noqa: E402
import onnx_small  # noqa: E402
import spark_server  # noqa: E402

import hearthd  # noqa: E402
from hearthd import predict, spark  # noqa: E402
from hearthd._memory import read_safetensors  # noqa: E402
from hearthd.predict import Patience, Predictor, Signature, Slot  # noqa: E402

IMAGES = np.load(DIGITS + '/images.npy')
FOLDER = tempfile.mkdtemp(prefix='hearth-predict-') if __name__ == '__main__' else ''  # a process that is spawned reads this file, too
IMAGE = Slot('image', 'FP32', (-1, 1, 8, 8))


def signature(*inputs, outputs=(Slot('y', 'FP32', (-1, 10)),), max_batch=0):
    return Signature('net', tuple(inputs), tuple(outputs), max_batch)


class Type:
    """A type of Spark as far as hearthd.spark asks for it."""

    def __init__(self, name, element=None, fields=None):
        self.name, self.elementType = name, element
        if fields is not None:
            self.fields = [type('Field', (), {'name': f'f{i}', 'dataType': t}) for i, t in enumerate(fields)]

    def typeName(self):
        return self.name

    def simpleString(self):
        return f'array<{self.elementType.simpleString()}>' if self.name == 'array' else self.name


class VectorUDT(Type):
    pass


def array(element):
    return Type('array', element)


FLOAT, DOUBLE, INT, BIGINT, TEXT, TRUTH = (Type(n) for n in ('float', 'double', 'int', 'bigint', 'string', 'boolean'))


class Cast(unittest.TestCase):
    def refused(self, words, call, *args, kind=hearthd.InvalidArgument, **named):
        with self.assertRaises(kind) as caught:
            call(*args, **named)
        self.assertIn(words, str(caught.exception))
        self.assertNotIn('\n', str(caught.exception))

    def test_types(self):
        for have, want, fits in (('f8', 'f4', True), ('i8', 'f4', True), ('f4', 'i8', False), ('i8', 'i1', True), ('i8', 'u1', True), ('?', 'f4', True),
                                 ('?', 'i8', True), ('i4', '?', False), ('O', 'f4', False), ('U3', 'f4', False), ('f2', 'f4', True)):
            self.assertEqual(predict.converts(have, want), fits, (have, want))
        a = np.arange(4, dtype=np.float32)
        self.assertIs(predict.converted(a, np.float32, 'a'), a)
        self.assertEqual(predict.converted(np.array([0, 255]), np.uint8, 'a').tolist(), [0, 255])
        self.refused('a has 256, which is outside of uint8', predict.converted, np.array([3, 256]), np.uint8, 'a')
        self.refused('a has -1, which is outside of uint8', predict.converted, np.array([3, -1]), np.uint8, 'a')
        self.refused('nulls, texts or decimals', predict.converted, np.array([None, 1]), np.float32, 'a')
        self.refused('a is of float64 (nulls are NaN in it), which does not convert to int64', predict.converted, np.array([1, np.nan]), np.int64, 'a')
        self.refused('a is of float64, which does not convert to int64', predict.converted, np.array([1.0]), np.int64, 'a')
        self.assertEqual(predict.converted(np.arange(3, dtype='>f4'), np.float32, 'a').tolist(), [0, 1, 2])

    def test_overflow(self):
        """A number that a narrower float has not is refused; infinity and NaN are what they were."""
        for values, want, value in (([1, 65520], np.float16, '65520.0'), ([-1e39, 0], np.float32, '-1e+39')):
            with warnings.catch_warnings():
                warnings.simplefilter('error')
                self.refused(f'a has {value}, which is outside of {np.dtype(want)}', predict.converted, np.array(values, np.float64), want, 'a')
        self.refused('a has 70000, which is outside of float16', predict.converted, np.array([70000]), np.float16, 'a')
        self.refused("input 'x' takes FP16 [n]; what it was given has 65520.0", predict.cast, Slot('x', 'FP16', (-1,)), np.float32([65520]))
        np.testing.assert_array_equal(predict.converted(np.array([np.inf, -np.inf, np.nan, 65504]), np.float16, 'a'), [np.inf, -np.inf, np.nan, 65504])

    def test_shapes(self):
        for want, have, got in (((1, 8, 8), (64,), (1, 8, 8)), ((1, 8, 8), (1, 8, 8), (1, 8, 8)), ((1, 8, 8), (8, 8), (1, 8, 8)), ((1, 8, 8), (63,), None),
                                ((), (), ()), ((), (1,), ()), ((1,), (), (1,)), ((3,), (), None), ((-1,), (7,), (7,)), ((-1, 3), (12,), (4, 3)),
                                ((-1, 3), (13,), None), ((-1, -1), (12,), None), ((-1, -1), (3, 4), (3, 4)), ((3, -1), (2, 2), None),
                                # as many values in another order are another picture
                                ((3, 4, 4), (4, 4, 3), None), ((1, 8, 8), (8, 8, 1), (1, 8, 8)), ((1, 8, 8), (4, 16), None), ((64,), (8, 8), None),
                                ((8, 8), (1, 64), None), ((3, 4, 4), (48,), (3, 4, 4)), ((2, 3), (1, 2, 3), (2, 3)), ((-1, 3), (1, 4, 3), (4, 3)),
                                ((-1, 3), (3, 4), None), ((1, 1), (), (1, 1)), ((3,), (0,), None), ((-1, 3), (0,), (0, 3))):
            self.assertEqual(predict.sample_shape(want, have), got, (want, have))

    def test_cast(self):
        x = IMAGES.reshape(360, 64).astype(np.float64)
        y = predict.cast(IMAGE, x)
        self.assertEqual((y.shape, y.dtype), (IMAGES.shape, np.float32))
        np.testing.assert_array_equal(y, IMAGES)
        self.assertTrue(np.shares_memory(predict.cast(IMAGE, IMAGES), IMAGES))
        self.assertTrue(np.shares_memory(predict.cast(IMAGE, IMAGES.reshape(360, 64)), IMAGES))
        self.assertEqual(predict.cast(Slot('x', 'FP32', (-1,)), np.float64(7)).tolist(), [7])  # a batch of one, squeezed
        self.assertEqual(predict.cast(Slot('x', 'FP32', (-1, 1)), np.arange(3)).tolist(), [[0], [1], [2]])
        self.assertEqual(predict.cast(Slot('x', 'FP32', ()), np.zeros((2, 3))).shape, (2, 3))  # of a rank that is not known
        self.refused("input 'image' takes FP32 [n,1,8,8], and was given samples of shape [63]", predict.cast, IMAGE, x[:, :63])
        self.refused("input 'image' takes FP32 [n,1,8,8]; what it was given is of <U1", predict.cast, IMAGE, np.array(['a']))
        self.refused('takes FP32 [n,3,4,4], and was given samples of shape [4, 4, 3]', predict.cast, Slot('image', 'FP32', (-1, 3, 4, 4)),
                     np.zeros((2, 4, 4, 3)))
        self.refused("which columns of numbers cannot be", predict.cast, Slot('t', 'BYTES', (-1,)), x, kind=hearthd.NotSupported)

    def test_batch(self):
        predict.check_batch(signature(IMAGE), 64)
        predict.check_batch(signature(IMAGE, max_batch=64), 64)
        predict.check_batch(signature(Slot('x', 'FP32', (1, 3))), 1)
        self.refused('takes at most 63 rows at a time, and batch_size is 64', predict.check_batch, signature(IMAGE, max_batch=63), 64)
        self.refused('takes 8 rows at a time, no other number: export it', predict.check_batch, signature(Slot('x', 'FP32', (8, 3))), 8)
        self.refused('batch_size can only be 1', predict.check_batch, signature(Slot('x', 'FP32', (1, 3))), 8)
        self.refused("input 'x' of 'net' is FP32, one number for all rows", predict.check_batch, signature(Slot('x', 'FP32', ())), 8)
        predict.check_batch(signature(Slot('x', 'FP32', (), False)), 8)
        for bad in (0, -1, 2.5, True, None):
            self.refused('batch_size is a whole number', predict.check_batch, signature(IMAGE), bad)

    def test_tensor_shapes(self):
        one, scalars = signature(IMAGE), signature(Slot('a', 'FP32', (-1,)), Slot('b', 'FP32', (-1, 3)))
        self.assertEqual(spark.tensor_shapes(one, None), [[1, 8, 8]])
        self.assertEqual(spark.tensor_shapes(scalars, None), [None, [3]])
        self.assertEqual(spark.tensor_shapes(signature(Slot('a', 'FP32', (-1,))), None), [[]])
        self.assertEqual(spark.tensor_shapes(scalars, {1: [3]}), [None, [3]])
        self.assertEqual(spark.tensor_shapes(scalars, [None, (3,)]), [None, [3]])
        self.assertEqual(spark.tensor_shapes(one, [[64]]), [[64]])
        self.refused("says [1, 8, 7], and input 'image' takes FP32 [n,1,8,8]", spark.tensor_shapes, one, [[1, 8, 7]])
        self.refused("has 1 shapes, and 'net' 2 inputs", spark.tensor_shapes, scalars, [[3]])
        self.refused('a shape of input 2', spark.tensor_shapes, scalars, {2: [3]})
        self.refused('say the shape of a sample', spark.tensor_shapes, signature(Slot('x', 'FP32', (-1, -1, 3))), None)

    def test_returned(self):
        with_loss = signature(IMAGE, outputs=(Slot('loss', 'FP32', ()), Slot('y', 'FP32', (-1,)), Slot('truth', 'BOOL', (-1,))))
        kind = Type('float')
        self.assertEqual(spark.returned(with_loss, kind, 'y')[1], [('', 'y', '<f4', False)])
        self.refused("output 'loss' of 'net' is FP32, one number for all rows", spark.returned, with_loss, kind, 'loss')
        self.refused("output 'loss' of 'net' is FP32, one number for all rows", spark.returned, with_loss, None, None)
        loose = signature(IMAGE, outputs=(Slot('y', 'FP32', (), False),))  # its rank is not known before it is there
        self.assertEqual(spark.returned(loose, kind, None)[1], [('', 'y', '<f4', False)])

    def test_columns(self):
        one, a, b = IMAGE, Slot('a', 'FP32', (-1,)), Slot('b', 'INT64', (-1, 3))
        for slot, datatype in ((one, array(DOUBLE)), (one, array(INT)), (a, FLOAT), (a, BIGINT), (a, TRUTH), (b, array(INT)), (a, array(FLOAT)),
                               (Slot('x', 'FP32', (-1, 1)), FLOAT), (Slot('x', 'FP32', (-1, 3)), Type('struct', fields=[FLOAT, INT, DOUBLE]))):
            spark.check_column(slot, 'c', datatype)
        spark.check_column(one, 'c', array(array(array(FLOAT))), nested=True)
        self.refused("column 'c' is string, and 'image' takes FP32 [n,1,8,8]", spark.check_column, one, 'c', TEXT)
        self.refused("column 'c' is array<string>", spark.check_column, one, 'c', array(TEXT))
        self.refused('float32 does not convert', spark.check_column, b, 'c', array(FLOAT))
        self.refused('a row has one value', spark.check_column, one, 'c', FLOAT)
        self.refused('give arrays flat', spark.check_column, one, 'c', array(array(FLOAT)))
        self.refused('vector_to_array', spark.check_column, one, 'c', VectorUDT('vector'))
        self.refused('a struct of 2 numbers', spark.check_column, Slot('x', 'FP32', (-1, 3)), 'c', Type('struct', fields=[FLOAT, INT]))

    def test_dataset_file(self):
        with tempfile.TemporaryDirectory() as folder:
            data = spark.DatasetFile(folder, [('x', np.float32), ('y', np.int64)])
            x, y = np.arange(70, dtype=np.float32).reshape(7, 2, 5), np.arange(7)
            for part in (slice(0, 3), slice(3, 4), slice(4, 7)):
                data.add(len(y[part]), [[2, 5], []], [x[part].tobytes(), y[part].tobytes()])
            first = data.close()
            read = read_safetensors(data.path)
            np.testing.assert_array_equal(read['x'], x)
            np.testing.assert_array_equal(read['y'], y)
            again = spark.DatasetFile(folder, [('x', np.float32), ('y', np.int64)])
            again.add(1, [[2, 5], []], [x[:1].tobytes(), y[:1].tobytes()])
            self.refused("'x' has samples of shape [2, 5] and of [5, 2]", again.add, 1, [[5, 2], []], [x[:1].tobytes(), y[:1].tobytes()])
            self.assertNotEqual(again.close(), first)
            empty = spark.DatasetFile(folder, [('x', np.float32)])
            self.refused('the DataFrame has no rows', empty.close)
            empty.abandon()

    def test_without_spark(self):
        """Neither the package nor this part of it needs pyspark, pandas or pyarrow."""
        code = "import sys; sys.modules.update(pyspark=None, pandas=None, pyarrow=None); import hearthd, hearthd.predict, hearthd.spark; print('good')"
        run = subprocess.run([sys.executable, '-c', code], check=False, capture_output=True, text=True, env={**os.environ, 'PYTHONPATH': PACKAGE})
        self.assertEqual((run.stdout, run.stderr), ('good\n', ''))


class Retry(unittest.TestCase):
    def setUp(self):
        self.now, self.pauses, self.calls = 0.0, [], 0

    def sleep(self, seconds):
        self.pauses.append(seconds)
        self.now += seconds

    def run_with(self, failures, error=hearthd.Busy, patience=Patience(), takes=0.0, chance=0.0):
        def call():
            self.calls += 1
            self.now += takes
            if self.calls <= failures:
                raise error('the queue is full')
            return 'answer'
        return predict.retry(call, patience, clock=lambda: self.now, sleep=self.sleep, chance=lambda: chance)

    def test_pauses_grow(self):
        self.assertEqual(self.run_with(9), 'answer')
        np.testing.assert_allclose(self.pauses, [0.05, 0.1, 0.2, 0.4, 0.8, 1.6, 3.2, 5, 5])

    def test_pauses_vary(self):
        self.run_with(3, chance=1.0)
        np.testing.assert_allclose(self.pauses, [0.025, 0.05, 0.1])

    def test_gives_up(self):
        with self.assertRaises(hearthd.DeviceLost) as caught:
            self.run_with(10**6, hearthd.DeviceLost, Patience(1, 10, 60))
        self.assertEqual(str(caught.exception), f'the queue is full (given up after {self.calls} tries in 60 s)')
        self.assertEqual(caught.exception.code, 9)
        self.assertEqual(self.pauses, [1, 2, 4, 8, 10, 10, 10, 10, 5])  # the last look is when patience ends
        self.assertEqual(self.now, 60)

    def test_patience_begins_with_the_first_failure(self):
        self.assertEqual(self.run_with(1, takes=300), 'answer')

    def test_what_passes(self):
        for kind in (hearthd.Busy, hearthd.Canceled, hearthd.DeviceLost, hearthd.OutOfDeviceMemory, hearthd.SystemFailure):
            self.calls = 0
            self.assertEqual(self.run_with(1, kind), 'answer')
        for kind in (hearthd.InvalidArgument, hearthd.NotFound, hearthd.Denied, hearthd.TooBig, hearthd.NotSupported, hearthd.Corrupt,
                     hearthd.LibraryNotFound):
            self.calls, self.pauses = 0, []
            with self.assertRaises(kind) as caught:
                self.run_with(1, kind)
            self.assertEqual((self.calls, self.pauses, str(caught.exception)), (1, [], 'the queue is full'))

    def test_other_errors(self):
        with self.assertRaises(ZeroDivisionError):
            self.run_with(1, lambda why: ZeroDivisionError())
        self.assertEqual(self.calls, 1)


class Counted(Predictor):
    """A model whose answer is its input; it keeps how many calls there were at a time, and `meets` of them wait for each other."""

    def __init__(self, meets=1):  # pylint: disable=super-init-not-called
        self.meet, self.lock, self.active, self.most, self.calls = threading.Barrier(meets), threading.Lock(), 0, 0, 0
        self.signature = signature(outputs=())

    def _call(self, inputs, outputs, stop=None):
        with self.lock:
            self.active, self.calls = self.active + 1, self.calls + 1
            self.most = max(self.most, self.active)
        try:
            self.meet.wait(PATIENCE)
            if inputs['x'].flat[0] < 0:
                raise hearthd.InvalidArgument('a negative one')
            return {'y': inputs['x']}
        finally:
            with self.lock:
                self.active -= 1


class Map(unittest.TestCase):
    def test_requests_are_under_way_together(self):
        p = Counted(predict.AHEAD)
        made = list(p.map({'x': np.full(3, i)} for i in range(2 * predict.AHEAD)))
        self.assertEqual([int(m['y'][0]) for m in made], list(range(2 * predict.AHEAD)))
        self.assertEqual(p.most, predict.AHEAD)

    def test_large_ones_are_not(self):
        half = predict.AHEAD_BYTES // 2
        for bytes_, most in ((half, 2), (half + 1, 1), (4 * half, 1)):
            p, taken = Counted(most), []
            answers = p.map((taken.append(i) or {'x': np.full(bytes_, i, np.int8)}) for i in range(6))
            self.assertEqual(int(next(answers)['y'][0]), 0)
            self.assertEqual(taken, list(range(most + 1)))  # the next one was made meanwhile
            self.assertEqual([int(a['y'][0]) for a in answers], [1, 2, 3, 4, 5])
            self.assertEqual(p.most, most)

    def test_outputs_count(self):
        p = Counted(1)
        p.signature = signature(outputs=(Slot('y', 'FP32', (-1, predict.AHEAD_BYTES // 8)),))  # half of the bytes for a row
        self.assertEqual([len(a['y']) for a in p.map({'x': np.zeros(2, 'i1')} for _ in range(5))], [2] * 5)
        self.assertEqual(p.most, 1)

    def test_ahead(self):
        y = (Slot('y', 'FP32', (-1, 1000)),)
        for shape, outputs, rows, n in (([9216], y, 2, 8), ([150_000], y, 2, 3), ([150_000], y, 8, 1), ([1], y, 10**9, 1), (None, (), 5, 8),
                                        ([1], (Slot('y', 'FP32', (-1, 10**6)),), 1, 1), ([1], (Slot('y', 'FP32', (-1, -1)),), 1, 1),
                                        ([1], (Slot('y', 'FP32', (), False),), 1, 1)):
            self.assertEqual(predict.requests_ahead([Slot('x', 'FP32', (-1, -1))], [shape], outputs, rows), n, (shape, rows))

    def test_an_end_ends_retries(self):
        """Whoever stops reading answers waits for no patience."""
        asked = threading.Event()

        class Away(Predictor):
            def __init__(self):  # pylint: disable=super-init-not-called
                self.signature, self.patience = signature(IMAGE), Patience(PATIENCE, PATIENCE, PATIENCE)

            def _ask(self, arrays):
                asked.set()
                raise hearthd.Busy('the queue is full')
        stop, ended = threading.Event(), []

        def call():
            with self.assertRaises(hearthd.Busy):
                Away()._call(IMAGES, None, stop)
            ended.append(1)
        t = threading.Thread(target=call)
        t.start()
        self.assertTrue(asked.wait(PATIENCE))
        stop.set()
        t.join(PATIENCE / 2)
        self.assertEqual(ended, [1])

    def test_a_failure(self):
        """Answers before it come, and nothing that was not begun is asked."""
        p, made = Counted(), []
        with self.assertRaisesRegex(hearthd.InvalidArgument, 'a negative one'):
            for answer in p.map({'x': np.int64([-1 if i == 2 else i])} for i in range(1000)):
                made.append(int(answer['y'][0]))
        self.assertEqual(made, [0, 1])
        self.assertLessEqual(p.calls, 3 + predict.AHEAD)

    def test_nothing(self):
        self.assertEqual(list(Counted().map([])), [])


def in_another(predictor, server, conn):
    """A process that was forked, or started: its answer, how many connections it has, and what it raised."""
    try:
        if server is not None:
            os.environ['HEARTH_SERVER'] = server
        logits = np.concatenate([a['logits'] for a in predictor.map([IMAGES[:100], IMAGES[100:]])])
        conn.send((np.array(logits), sum(pid == os.getpid() for pid, _ in predict._clients), ''))
    except BaseException as e:  # pylint: disable=broad-except
        conn.send((None, 0, f'{type(e).__name__}: {e}'))


def ask_in_another(predictor, server=None, how='fork'):
    here, there = multiprocessing.Pipe()
    p = multiprocessing.get_context(how).Process(target=in_another, args=(predictor, server, there))
    p.start()
    there.close()
    answer = here.recv()
    p.join(PATIENCE)
    return answer


class Served(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.server = spark_server.Server(BUILD, FOLDER, 'first')
        cls.other = spark_server.Server(BUILD, FOLDER, 'other')
        cls.url = cls.server.url
        with hearthd.Client(cls.url) as c:
            c.import_model('digits', DIGITS + '/digits.onnx')
            cls.want = np.array(c.infer('digits', IMAGES)['logits'])

    @classmethod
    def tearDownClass(cls):
        predict.forget()
        assert cls.server.stop() == 0
        assert cls.other.stop() == 0

    def right(self, logits):
        np.testing.assert_allclose(logits, self.want, rtol=1e-4, atol=1e-4)

    def file(self, name, data):
        path = os.path.join(FOLDER, name)
        with open(path, 'wb') as f:
            f.write(data)
        return path

    def test_by_name(self):
        p = Predictor('digits', server=self.url)
        self.assertEqual((p.name, p.signature.inputs[0], p.signature.outputs[0].shape), ('digits:1', IMAGE, (-1, 10)))
        self.right(p(IMAGES)['logits'])
        self.right(p({'image': IMAGES.reshape(360, 64).astype(np.float64)})['logits'])
        self.assertEqual(p(np.zeros((0, 64)))['logits'].shape, (0, 10))
        with hearthd.Client(self.url) as c:
            c.alias('numbers', 'digits:1')
        self.assertEqual(Predictor('numbers', server=self.url).name, 'digits:1')

    def test_map(self):
        p = Predictor('digits', server=self.url)
        made = list(p.map((IMAGES[i:i + 7] for i in range(0, 360, 7)), outputs=iter(['logits'])))
        self.assertEqual([len(m['logits']) for m in made], [7] * 51 + [3])
        self.right(np.concatenate([m['logits'] for m in made]))
        with self.assertRaisesRegex(hearthd.InvalidArgument, 'samples of shape'):
            list(p.map([IMAGES, np.zeros((3, 7), np.float32)]))

    def test_refusals(self):
        p = Predictor('digits', server=self.url)
        for words, call in (("takes image, and was given picture", lambda: p({'picture': IMAGES})), ("takes image, and was given nothing", lambda: p({})),
                            ('samples of shape [7]', lambda: p(np.zeros((3, 7), np.float32))), ('no URL', lambda: Predictor('digits', server=FOLDER))):
            with self.assertRaises(hearthd.InvalidArgument) as caught:
                call()
            self.assertIn(words, str(caught.exception))
        for name in ('nobody', FOLDER + '/absent.onnx', 'absent.onnx'):
            with self.assertRaises(hearthd.NotFound):
                Predictor(name, server=self.url)
        with self.assertRaises(hearthd.Error):  # at once, on the driver
            Predictor('digits', server=f'ipc://{FOLDER}/nobody')
        os.environ['HEARTH_SERVER'] = FOLDER
        self.addCleanup(os.environ.pop, 'HEARTH_SERVER')
        with self.assertRaisesRegex(hearthd.InvalidArgument, 'no URL'):
            Predictor('digits')

    def test_two_inputs(self):
        path = self.file('two.onnx', spark_server.two_inputs())
        p = Predictor(path, server=self.url)
        y = p({'b': np.arange(6).reshape(2, 3), 'a': np.array([1, 2])})
        self.assertEqual((y['double'].tolist(), y['square'].tolist()), ([2, 4], [[0, 1, 4], [9, 16, 25]]))
        with self.assertRaisesRegex(hearthd.InvalidArgument, '2 and 3 rows'):
            p({'a': np.zeros(3), 'b': np.zeros((2, 3))})
        with self.assertRaisesRegex(hearthd.InvalidArgument, 'has 2 inputs'):
            p(np.zeros(3))

    def test_outputs(self):
        """What nobody asked for may be one number for all rows, and is not handed out."""
        p = Predictor(self.file('sum.onnx', spark_server.with_sum()), server=self.url)
        self.assertEqual(p.signature.outputs, (Slot('sum', 'FP32', ()), Slot('y', 'FP32', (-1,))))
        got = p(np.arange(3), outputs=['y'])
        self.assertEqual((list(got), got['y'].tolist()), (['y'], [0, 2, 4]))
        self.assertEqual(list(p(np.zeros(0), outputs=['y'])), ['y'])
        for outputs in (None, ['sum']):
            with self.assertRaisesRegex(hearthd.InvalidArgument, r"output 'sum' .* has shape \[\] for 3 rows: not one for each"):
                p(np.arange(3), outputs=outputs)
        with self.assertRaisesRegex(hearthd.NotFound, "has no output 'z', but sum, y"):
            p(np.arange(3), outputs=['z'])
        loose = Predictor(self.file('loose.onnx', spark_server.any_rank()), server=self.url)
        self.assertEqual(loose.signature.outputs, (Slot('y', 'FP32', (), False),))
        self.assertEqual(loose(np.zeros((3, 2), np.float32))['y'].shape, (3, 2))

    def test_by_content(self):
        """A file goes where the model is missing, under the same name for all, and again where it was removed."""
        path = shutil.copy(DIGITS + '/digits.onnx', os.path.join(FOLDER, 'content.onnx'))
        p = Predictor(path, server=self.url)
        self.assertRegex(p.name, '^onnx-[0-9a-f]{32}$')
        self.assertEqual(p.name, Predictor(DIGITS + '/digits.onnx', server=self.url).name)
        self.right(p(IMAGES)['logits'])
        p = pickle.loads(pickle.dumps(p))
        self.right(p(IMAGES)['logits'])
        with hearthd.Client(self.url) as c:
            self.assertEqual([m['version'] for m in c.models() if m['name'] == p.name], [1])
            c.remove(p.name)
            self.right(p(IMAGES)['logits'])
            self.assertEqual(len([m for m in c.models() if m['name'] == p.name]), 1)
            gone = Predictor('digits', server=self.url)
            gone.name = 'digits:7'
            with self.assertRaises(hearthd.NotFound):
                gone(IMAGES)
            c.remove(p.name)
        os.unlink(path)
        with self.assertRaisesRegex(hearthd.NotFound, f"has no model '{p.name}', and there is no file"):
            p(IMAGES)

    def test_other_nodes(self):
        """Each process asks the server of its machine, and one that lacks the model gets it there."""
        os.environ['HEARTH_SERVER'] = self.url
        self.addCleanup(os.environ.pop, 'HEARTH_SERVER')
        p = Predictor(DIGITS + '/digits.onnx')
        for how in ('fork', 'spawn'):
            logits, connections, why = ask_in_another(p, self.other.url, how)
            self.assertEqual((connections, why), (1, ''))
            self.right(logits)
        with hearthd.Client(self.other.url) as c:
            self.assertEqual([m['name'] for m in c.models()], [p.name])
        named = Predictor('digits')
        _, _, why = ask_in_another(named, self.other.url)
        self.assertRegex(why, "^NotFound: the server of this process has no model 'digits:1'$")

    def test_forks(self):
        p = Predictor('digits', server=self.url)
        self.right(next(p.map([IMAGES]))['logits'])
        with predict._lock, predict._importing:  # as if another thread opened a connection when the process forks
            logits, connections, why = ask_in_another(p)
        self.assertEqual((connections, why), (1, ''))
        self.right(logits)
        self.right(p(IMAGES)['logits'])

    def test_weights_elsewhere(self):
        """Two files are the same then, and their weights are not: whatever the sizes are."""
        for n in (4, 4096):
            path = self.file('external.onnx', onnx_small.external_add(n, 'external.bin'))
            self.file('external.bin', bytes(4 * n))
            with self.assertRaisesRegex(hearthd.InvalidArgument, f'^{path} keeps weights in other files, .*external.bin'):
                Predictor(path, server=self.url)
            with hearthd.Client(self.url) as c:
                self.assertFalse([m for m in c.models() if m['name'] == f'onnx-{predict.digest(path)[:32]}'])

    def test_packed_weights(self):
        """Weights that take more bytes than the file that they are in."""
        p = Predictor(self.file('packed.onnx', spark_server.packed(4096)), server=self.url)
        self.assertGreater(8 * 4096, os.path.getsize(p.file))
        self.assertEqual(p(np.full((2, 4096), 6))['y'].tolist(), [[7] * 4096] * 2)

    def test_no_model(self):
        """The sentence names the file that was given."""
        path = self.file('text.onnx', b'# digits\n')
        with self.assertRaises(hearthd.Error) as caught:
            Predictor(path, server=self.url)
        self.assertEqual(str(caught.exception), f"'{path}': not an ONNX model, but text")

    def test_engine_and_server_are_killed(self):
        """In the middle of requests, until three of them had to be repeated: the answers are those of an undisturbed server."""
        p, repeated, answers, bad, ended = Predictor('digits', server=self.url), [], [], [], threading.Event()
        many, plain = np.repeat(IMAGES, 50, axis=0), predict.retry

        def counting(call, patience, **_):
            return plain(call, patience, again=lambda e: predict.passing(e) and not repeated.append(type(e).__name__))

        def ask():
            try:
                while not ended.is_set():
                    np.testing.assert_allclose(p(many)['logits'][::50], self.want, rtol=1e-4, atol=1e-4)
                    answers.append(1)
            except BaseException as e:  # pylint: disable=broad-except
                bad.append(e)
        predict.retry = counting
        self.addCleanup(setattr, predict, 'retry', plain)
        threads = [threading.Thread(target=ask) for _ in range(2)]
        for t in threads:
            t.start()
        until = time.monotonic() + PATIENCE
        kills = 0
        while (kills < 3 or len(repeated) < 3) and not bad and time.monotonic() < until:
            before = len(answers)
            while len(answers) == before and not bad and time.monotonic() < until:
                time.sleep(0.001)
            if kills == 1:
                self.server.restart(signal.SIGKILL)
            else:
                self.server.kill_engine()
            kills += 1
        ended.set()
        for t in threads:
            t.join(PATIENCE)
        print(f'# {kills} kills, {len(answers)} answers, repeated: {" ".join(repeated)}', flush=True)
        self.assertEqual(bad, [])
        self.assertGreaterEqual(len(repeated), 3)

    def test_patience_ends(self):
        server = spark_server.Server(BUILD, FOLDER, 'going')
        with hearthd.Client(server.url) as c:
            c.import_model('digits', DIGITS + '/digits.onnx')
        p = Predictor('digits', server=server.url, patience=Patience(0.01, 0.01, 0.02))
        self.right(p(IMAGES)['logits'])
        self.assertEqual(server.stop(), 0)
        with self.assertRaisesRegex(hearthd.SystemFailure, r'\(given up after \d tries in \d+ s\)$'):
            p(IMAGES)


if __name__ == '__main__':
    os.chdir(ROOT)
    code = tap.run((Cast, Retry, Map, Served))
    shutil.rmtree(FOLDER, ignore_errors=True)
    sys.exit(code)
