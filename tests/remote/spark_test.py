#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""hearthd.spark with Spark on this machine (local[2]): predictions as a column and over Arrow, training, kills of engine and server in the midst
of a job whose tasks may not fail, memory per worker, refusals before a job starts, and docs/spark.md with its examples for Dask and Ray.
HEARTH_SPARK_MASTER=local-cluster[2,1,1024] and HEARTH_SPARK_ROWS=100000 try it with executors of their own, and for longer.
Speaks TAP. usage: tests/remote/spark_test.py BUILD_DIR, from the root. Spark, Dask, Ray and Java come with `make deps-spark`."""
import gc
import importlib.util
import os
import pickle
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
import unittest

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
BUILD = os.path.abspath(sys.argv[1] if len(sys.argv) > 1 else 'build')
PACKAGE, DIGITS = os.path.join(ROOT, 'client', 'python'), os.path.join(ROOT, 'tests', 'data', 'digits')
PATIENCE = 120
sys.dont_write_bytecode = True
sys.path[:0] = [PACKAGE, os.path.join(ROOT, 'tests'), os.path.join(ROOT, 'tests', 'remote')]
import tap  # noqa: E402

if not tap.use_python('pyspark, pandas, pyarrow', tap.clients_folder() + '/bin/python'):
    print('1..0 # SKIP pyspark is not installed (make deps-spark)')
    sys.exit(0)
if shutil.which('java') is None and not os.environ.get('JAVA_HOME'):
    print('1..0 # SKIP Java is not installed (make deps-spark)')
    sys.exit(0)

import numpy as np  # noqa: E402
import pyarrow as pa  # noqa: E402
import spark_server  # noqa: E402
from pyspark.sql import SparkSession, functions as F  # noqa: E402
from pyspark.sql.types import ArrayType, FloatType  # noqa: E402

FOLDER = tempfile.mkdtemp(prefix='hearth-spark-test-') if __name__ == '__main__' else ''  # Dask's processes read this file, too
for variable in ('HEARTH_SERVER', 'HEARTH_TOKEN', 'XDG_RUNTIME_DIR', 'SPARK_HOME'):
    os.environ.pop(variable, None)
os.environ.update(HEARTH_LIBRARY=os.path.join(BUILD, 'libhearth.so'), PYTHONPATH=PACKAGE, PYSPARK_PYTHON=sys.executable,
                  PYTHONDONTWRITEBYTECODE='1', SPARK_LOCAL_IP='127.0.0.1', SPARK_LOCAL_DIRS=FOLDER)
import hearthd  # noqa: E402
from hearthd import _arrow, predict, spark as hs  # noqa: E402

IMAGES, LABELS = np.load(DIGITS + '/images.npy'), np.load(DIGITS + '/labels.npy')
ROWS = int(os.environ.get('HEARTH_SPARK_ROWS', '20000'))
KILLS = (1, 2, 3, 4, 5)  # the second one is the server's
PARTITIONS, BATCH = 4, 500
session = driver = node = None  # Spark, the driver's server, and that of the node, which workers ask


def setUpModule():
    global session, driver, node  # pylint: disable=global-statement
    unittest.addModuleCleanup(shutil.rmtree, FOLDER, True)
    driver, node = (spark_server.Server(BUILD, FOLDER, name) for name in ('driver', 'node'))
    for server in (driver, node):
        unittest.addModuleCleanup(server.stop)
    os.environ['HEARTH_SERVER'] = driver.url
    with hearthd.Client() as c:
        c.import_model('digits', DIGITS + '/digits.onnx')
        c.import_model('new', DIGITS + '/untrained.onnx')
        Expected.logits = np.array(c.infer('digits', IMAGES)['logits'])
    script = FOLDER + '/discover'
    with open(script, 'w', encoding='ascii') as f:
        f.write(f'#!/bin/sh\nexec {sys.executable} -m hearthd.spark\n')
    os.chmod(script, 0o755)
    settings = {'spark.ui.enabled': 'false', 'spark.ui.showConsoleProgress': 'false', 'spark.task.maxFailures': '1',
                'spark.driver.host': '127.0.0.1', 'spark.driver.memory': '1g',
                'spark.sql.execution.arrow.maxRecordsPerBatch': str(BATCH), 'spark.sql.shuffle.partitions': '2', 'spark.python.worker.reuse': 'true',
                'spark.executorEnv.HEARTH_SERVER': node.url, 'spark.sql.warehouse.dir': FOLDER + '/warehouse',
                'spark.driver.resource.hearth.amount': '1', 'spark.driver.resource.hearth.discoveryScript': script}
    builder = SparkSession.builder.master(os.environ.get('HEARTH_SPARK_MASTER', 'local[2]')).appName('hearth')
    for key, value in settings.items():
        builder = builder.config(key, value)
    session = builder.getOrCreate()
    session.sparkContext.setLogLevel('OFF')
    unittest.addModuleCleanup(session.stop)


class Expected:
    logits = None


def images(n=ROWS, partitions=PARTITIONS):
    """Rows of digits: id, image (of digit id % 360), as arrays of float."""
    data = DIGITS + '/images.npy'

    def make(batches):
        x = np.load(data).reshape(360, 64)
        for b in batches:
            ids = b.column(0).to_numpy()
            yield pa.RecordBatch.from_arrays([b.column(0), pa.ListArray.from_arrays(
                pa.array(np.arange(len(ids) + 1, dtype=np.int32) * 64), pa.array(x[ids % 360].reshape(-1)))], names=['id', 'image'])
    return session.range(n, numPartitions=partitions).mapInArrow(make, 'id bigint, image array<float>')


def check(rows, n=ROWS):
    """What a job has made of images(n): every row, and each with the logits of its digit."""
    ids = np.array([r[0] for r in rows])
    assert sorted(ids.tolist()) == list(range(n)), len(ids)
    np.testing.assert_allclose(np.array([r[1] for r in rows], np.float32), Expected.logits[ids % 360], rtol=1e-4, atol=1e-4)


def models(server):
    with hearthd.Client(server.url) as c:
        return {m['name'] for m in c.models()}


def file_of(name, data):
    path = os.path.join(FOLDER, name)
    with open(path, 'wb') as f:
        f.write(data)
    return path


class Columns(unittest.TestCase):
    """As pyspark's own tests of predict_batch_udf: kinds of columns and results."""

    def test_array(self):
        logits = hs.predict_udf('digits', return_type=ArrayType(FloatType()), batch_size=300, server=driver.url)
        check(images(2000).select('id', logits('image')).collect(), 2000)

    def test_by_content(self):
        """A node without the model gets it from the driver, by content: a file, or what the driver's server has under a name."""
        path = shutil.copy(DIGITS + '/digits.onnx', FOLDER + '/shipped.onnx')
        by_file = hs.predict_udf(path, return_type='array<float>', batch_size=300)
        os.unlink(path)  # Spark has it
        check(images(1000).select('id', by_file('image')).collect(), 1000)
        named = {m for m in models(node) if m.startswith('onnx-')}
        again = hs.predict_udf(DIGITS + '/digits.onnx', return_type='array<float>', batch_size=300)
        check(images(1000).select('id', again('image')).collect(), 1000)
        self.assertEqual({m for m in models(node) if m.startswith('onnx-')}, named)
        by_name = hs.predict_udf('digits', return_type='array<float>', batch_size=300, ship=True)
        check(images(1000).select('id', by_name('image')).collect(), 1000)
        self.assertNotIn('digits', models(node))

    def test_closure_is_small(self):
        from pyspark.serializers import CloudPickleSerializer
        path = file_of('big.onnx', spark_server.product(64, 16384, np.random.default_rng(1).random(64 * 16384, np.float32).tobytes()))
        udf = hs.predict_udf(path, return_type='array<float>', batch_size=100)
        self.assertLess(len(CloudPickleSerializer().dumps((udf.func, udf.returnType))), 10_000)  # of a file of 4 MB

    def test_scalars_and_several_columns(self):
        path = file_of('two.onnx', spark_server.two_inputs())
        df = session.range(50, numPartitions=3).select('id', (F.col('id') * 1.5).alias('a'), F.array('id', 'id', F.lit(2)).alias('b'))
        both = hs.predict_udf(path, return_type='double double, square array<float>', batch_size=7, df=df)
        for row in df.select('id', both('a', 'b').alias('p')).select('id', 'p.*').collect():
            self.assertEqual((row['double'], row['square']), (3.0 * row['id'], [row['id']**2, row['id']**2, 4]))
        only = hs.predict_udf(path, return_type='array<double>', output='square', batch_size=7)
        self.assertEqual(df.select(only('a', 'b')).first()[0], [0, 0, 4])
        all_of = hs.predict_udf(path, batch_size=7)
        self.assertEqual(df.select(all_of('a', 'b').alias('p')).schema['p'].dataType.simpleString(), 'struct<double:float,square:array<float>>')

    def test_one_scalar(self):
        import onnx_small
        path = file_of('same.onnx', onnx_small.identity('INT64', ('n',)))
        same = hs.predict_udf(path, return_type='bigint', batch_size=1)
        df = session.range(5, numPartitions=2)
        self.assertEqual(sorted(r[0] for r in df.select(same('id')).collect()), [0, 1, 2, 3, 4])  # a batch of one is squeezed by Spark
        column = hs.predict_udf(file_of('column.onnx', onnx_small.identity('FP32', ('n', 1))), return_type='float', batch_size=3)
        self.assertEqual(sorted(r[0] for r in df.select(column('id')).collect()), [0, 1, 2, 3, 4])

    def test_truth(self):
        """A truth value for a row is a number, for PySpark takes no boolean from a batch; arrays of them, and Arrow's columns, stay what they are."""
        import onnx_small
        path = file_of('truth.onnx', onnx_small.identity('BOOL', ('n',)))
        df = session.range(4, numPartitions=2).select('id', (F.col('id') > 1).alias('x'))
        for column, model, made, values in (
                (F.col('x'), path, 'tinyint', [0, 0, 1, 1]),
                (F.array('x', 'x'), file_of('truths.onnx', onnx_small.identity('BOOL', ('n', 2))), 'array<boolean>', [[i > 1] * 2 for i in range(4)])):
            rows = df.select('id', hs.predict_udf(model, batch_size=3)(column).alias('y'))
            self.assertEqual(rows.schema['y'].dataType.simpleString(), made)
            self.assertEqual([r.y for r in sorted(rows.collect())], values)
        rows = hs.map_batches(df, path, columns='x', keep=['id'], outputs={'OUTPUT0': 'y'})
        self.assertEqual(rows.schema['y'].dataType.simpleString(), 'boolean')
        self.assertEqual([r.y for r in sorted(rows.collect())], [False, False, True, True])

    def test_nulls(self):
        """What docs/spark.md says of them: NaN to the model, which comes back as a null, and no whole number."""
        import onnx_small
        df = session.range(3, numPartitions=1).select('id', F.when(F.col('id') > 0, F.col('id').cast('float')).alias('x'), F.lit(3).cast('float').alias('z'),
                                                      F.when(F.col('id') > 0, F.col('id')).alias('whole'))
        same, pair, whole = (hs.predict_udf(file_of(f'nulls{i}.onnx', onnx_small.identity(*of)), batch_size=3, df=df)
                             for i, of in enumerate((('FP32', ('n',)), ('FP32', ('n', 2)), ('INT64', ('n',)))))
        self.assertEqual([tuple(r) for r in df.select('id', same('x')).sort('id').collect()], [(0, None), (1, 1), (2, 2)])
        rows = [r[0] for r in df.sort('id').select(pair(F.array('x', 'z'))).collect()]
        self.assertTrue(np.isnan(rows[0][0]), rows)
        self.assertEqual((rows[0][1], rows[1:]), (3, [[1, 3], [2, 3]]))
        with self.assertRaisesRegex(Exception, r'is of float64 \(nulls are NaN in it\), which does not convert to int64'):
            df.select(whole('whole')).collect()
        with self.assertRaisesRegex(Exception, 'ValueError'):  # an array that is null
            df.select(pair(F.when(F.col('id') > 0, F.array('x', 'z')))).collect()

    def test_one_of_the_outputs(self):
        """The others may be what no column can be."""
        path = file_of('sum-of.onnx', spark_server.with_sum())
        df = session.range(5, numPartitions=2).select('id', F.col('id').cast('float').alias('x'))
        double = hs.predict_udf(path, output='y', batch_size=2)
        self.assertEqual(sorted(tuple(r) for r in df.select('id', double('x')).collect()), [(i, 2 * i) for i in range(5)])
        rows = hs.map_batches(df, path, columns='x', outputs=['y'], keep=['id'], batch_size=2).collect()
        self.assertEqual(sorted(tuple(r) for r in rows), [(i, 2 * i) for i in range(5)])

    def test_array_of_columns(self):
        import onnx_small
        path = file_of('three.onnx', onnx_small.identity('FP32', ('n', 3)))
        three = hs.predict_udf(path, return_type='array<float>', batch_size=4)
        df = session.range(5).select('id', (F.col('id') + 1).alias('next'))
        for columns in (F.array('id', 'next', 'id'), F.struct('id', 'next', F.col('id').alias('last'))):
            self.assertEqual(sorted(r[0] for r in df.select(three(columns)).collect()), [[i, i + 1, i] for i in range(5)])

    def test_one_connection_per_worker(self):
        """Workers that are used again keep their connection."""
        logits = hs.predict_udf('digits', return_type='array<float>', batch_size=100, server=driver.url)
        for _ in range(2):
            check(images(800, 8).select('id', logits('image')).collect(), 800)

        def look(batches):
            from hearthd import predict as p
            for _ in batches:
                pass
            mine = [server for pid, server in p._clients if pid == os.getpid()]
            yield pa.RecordBatch.from_arrays([pa.array([len(mine)]), pa.array([len(set(mine))])], names=['connections', 'servers'])
        rows = session.range(8, numPartitions=8).mapInArrow(look, 'connections bigint, servers bigint').collect()
        self.assertTrue(any(r.connections for r in rows), rows)
        self.assertTrue(all(r.connections == r.servers for r in rows), rows)


class Refused(unittest.TestCase):
    """On the driver, in one sentence, and before a job starts."""

    def setUp(self):
        self.group = f'refused-{self.id()}'
        session.sparkContext.setJobGroup(self.group, 'none of these starts')
        self.df = session.range(10).select('id', F.array(F.lit(1.0)).alias('short'), F.lit('x').alias('text'), F.array(F.lit('x')).alias('texts'),
                                           F.array_repeat(F.lit(1.5), 64).alias('image'), F.array(F.array(F.lit(1.0))).alias('nested'))
        self.two = file_of('two-refused.onnx', spark_server.two_inputs())

    def tearDown(self):
        self.assertEqual(list(session.sparkContext.statusTracker().getJobIdsForGroup(self.group)), [])

    def refused(self, words, call, *args, kind=hearthd.InvalidArgument, **named):
        with self.assertRaises(kind) as caught:
            call(*args, **named)
        self.assertIn(words, str(caught.exception))
        self.assertNotIn('\n', str(caught.exception))

    def test_model(self):
        udf = {'return_type': 'array<float>', 'batch_size': 10}
        self.refused("'nobody'", hs.predict_udf, 'nobody', kind=hearthd.NotFound, **udf)
        self.refused("there is no file", hs.predict_udf, '/absent/model.onnx', kind=hearthd.NotFound, **udf)
        self.refused(f"'{DIGITS}/README.md': not an ONNX model, but text", hs.predict_udf, DIGITS + '/README.md', kind=hearthd.Corrupt, **udf)
        self.refused('batch_size is a whole number', hs.predict_udf, 'digits', return_type='float', batch_size=0)
        self.refused("input_tensor_shapes says [63]", hs.predict_udf, 'digits', input_tensor_shapes=[[63]], **udf)

    def test_return_type(self):
        self.refused("output 'logits' is FP32 [n,10], which is no float: a row has more than one value", hs.predict_udf, 'digits', return_type='float',
                     batch_size=10)
        self.refused('does not convert', hs.predict_udf, 'digits', return_type='array<int>', batch_size=10)
        self.refused('numbers can be returned', hs.predict_udf, 'digits', return_type='string', batch_size=10)
        self.refused("has no output 'probability', but logits", hs.predict_udf, 'digits', return_type='probability array<float>', batch_size=10,
                     kind=hearthd.NotFound)
        total = file_of('sum-refused.onnx', spark_server.with_sum())
        for named in ({}, {'output': 'sum'}, {'return_type': 'sum float, y float'}):
            self.refused("output 'sum' of 'onnx-", hs.predict_udf, total, batch_size=10, **named)
        self.refused('is FP32, one number for all rows, and not one for each', hs.predict_udf, total, output='sum', batch_size=10)
        self.refused('has the outputs double, square: say which', hs.predict_udf, self.two, return_type='float', batch_size=10)

    def test_column(self):
        udf = hs.predict_udf('digits', return_type='array<float>', batch_size=10, df=self.df)
        self.refused("column 'text' is string, and 'image' takes FP32 [n,1,8,8]", udf, 'text')
        self.refused("column 'texts' is array<string>", udf, F.col('texts'))
        self.refused("column 'id' is bigint, and 'image' takes FP32 [n,1,8,8]: a row has one value", udf, 'id')
        self.refused('give arrays flat', udf, 'nested')
        self.refused("'digits' takes 1 column (image), or one that pyspark.sql.functions.array makes of them, and was given 2", udf, 'id', 'image')
        two = hs.predict_udf(self.two, batch_size=10, df=self.df)
        self.refused('takes 2 columns (a, b), and was given 3', two, 'id', 'id', 'short')
        self.refused("column 'texts' is array<string>", two, 'id', 'texts')

    def test_map_batches(self):
        self.refused("no column 'picture', but id, short", hs.map_batches, self.df, 'digits', columns='picture')
        self.refused("column 'text' is string", hs.map_batches, self.df, 'digits', columns='text')
        self.refused("has no output 'y'", hs.map_batches, self.df, 'digits', columns='image', outputs=['y'], kind=hearthd.NotFound)
        self.refused("has a column 'id' already", hs.map_batches, self.df, 'digits', columns='image', outputs={'logits': 'id'}, kind=hearthd.Exists)
        self.refused('has the inputs a, b', hs.map_batches, self.df, self.two, columns='id')
        self.refused('is FP32, one number for all rows', hs.map_batches, self.df, file_of('sum-batches.onnx', spark_server.with_sum()), columns='id')

    def test_names_of_columns(self):
        """Spark tells no capitals in them apart."""
        named = {'columns': {'a': 'id', 'b': 'short'}}
        for outputs, words in (({'double': 'y', 'square': 'y'}, "two outputs would be the column 'y'"),
                               ({'double': 'y', 'square': 'Y'}, "two outputs would be the column 'Y'")):
            self.refused(words, hs.map_batches, self.df, self.two, outputs=outputs, **named)
        self.refused("has a column 'ID' already", hs.map_batches, self.df, self.two, outputs={'double': 'ID'}, kind=hearthd.Exists, **named)
        session.conf.set('spark.sql.caseSensitive', 'true')
        self.addCleanup(session.conf.unset, 'spark.sql.caseSensitive')
        made = hs.map_batches(self.df, self.two, outputs={'double': 'y', 'square': 'Y'}, keep=['id'], **named)
        self.assertEqual(made.columns, ['id', 'y', 'Y'])

    def test_fit(self):
        self.refused("there is no loss 'hinge'", hs.fit, self.df, 'new', loss='hinge', x='image', y='id')
        self.refused("column 'text' is string", hs.fit, self.df, 'new', loss='softmax-xent', x='text', y='id')
        self.refused("column 'text' is string", hs.fit, self.df, 'new', loss='softmax-xent', x='image', y='text')
        self.refused("no column 'label'", hs.fit, self.df, 'new', loss='softmax-xent', x='image', y='label')
        with hearthd.Client() as c:
            c.put_data('taken', {'x': IMAGES[:3], 'y': LABELS[:3]})
            self.addCleanup(hearthd.Client.remove_data, hearthd.Client(), 'taken')
            self.refused("there is a dataset 'taken' already", hs.fit, self.df, 'new', loss='softmax-xent', x='image', y='id', name='taken',
                         kind=hearthd.Exists)
            self.assertEqual([d['samples'] for d in c.datasets() if d['name'] == 'taken'], [3])


class Arrow(unittest.TestCase):
    def test_to_numpy(self):
        flat = pa.array(np.arange(24, dtype=np.float32))
        start = np.asarray(flat).__array_interface__['data'][0]
        lists = pa.ListArray.from_arrays(pa.array(np.arange(5, dtype=np.int32) * 6), flat)
        fixed = pa.FixedSizeListArray.from_arrays(flat, 6)
        nested = pa.FixedSizeListArray.from_arrays(pa.FixedSizeListArray.from_arrays(flat, 3), 2)
        want = np.arange(24, dtype=np.float32).reshape(4, 6)
        for column in (lists, fixed, lists.cast(pa.large_list(pa.float32())), pa.array(want.tolist(), pa.list_(pa.float32()))):
            for at, n in ((0, 4), (1, 2), (3, 1), (4, 0)):
                got = _arrow.to_numpy(column.slice(at, n), 'c')
                if n:
                    np.testing.assert_array_equal(got, want[at:at + n])
                self.assertEqual(len(got), n)
        for column in (lists, fixed):
            self.assertEqual(_arrow.to_numpy(column.slice(1, 2), 'c').__array_interface__['data'][0], start + 24)  # in place
        np.testing.assert_array_equal(_arrow.to_numpy(nested.slice(1, 2), 'c'), want.reshape(4, 2, 3)[1:3])
        self.assertEqual(_arrow.to_numpy(pa.array([True, False]), 'c').tolist(), [True, False])
        for column, words in ((pa.array([[1.0], [2.0, 3.0]]), 'lists of 1 and of 2 values'), (pa.array([[1.0], None]), 'has nulls'),
                              (pa.array([[1.0], [None]]), 'has nulls'), (pa.array([1, None]), 'has nulls'), (pa.array(['a']), 'not of numbers')):
            with self.assertRaisesRegex(hearthd.InvalidArgument, words):
                _arrow.to_numpy(column, 'c')

    def test_to_arrow(self):
        a = np.arange(12, dtype=np.float32).reshape(4, 3)
        column = _arrow.to_arrow(a)
        self.assertEqual(column.to_pylist(), a.tolist())
        self.assertEqual(column.values.buffers()[1].address, a.__array_interface__['data'][0])
        self.assertEqual(_arrow.to_arrow(a[:, 0]).to_pylist(), [0, 3, 6, 9])
        self.assertEqual(_arrow.to_arrow(a.reshape(2, 2, 3)).to_pylist(), a.reshape(2, 2, 3).tolist())

    def test_map_batches(self):
        df = images(3000)
        made = hs.map_batches(df, 'digits', columns='image', keep=['id'], batch_size=170, server=driver.url)
        self.assertEqual(made.schema.simpleString(), 'struct<id:bigint,logits:array<float>>')
        check(made.collect(), 3000)
        every = hs.map_batches(df, 'digits', columns='image', outputs={'logits': 'the scores'}, server=driver.url)
        self.assertEqual(every.columns, ['id', 'image', 'the scores'])
        check(every.select('id', 'the scores').collect(), 3000)

    def test_several_inputs_and_types(self):
        path = file_of('two-arrow.onnx', spark_server.two_inputs())
        df = session.range(20).select('id', F.col('id').cast('int').alias('a.b'), F.array('id', 'id', 'id').alias('b'), F.lit('kept').alias('text'))
        rows = hs.map_batches(df, path, columns={'a': 'a.b', 'b': 'b'}, keep=['id', 'text'], batch_size=3).collect()
        self.assertEqual({(r.id, r.text, r.double, *r.square) for r in rows}, {(i, 'kept', 2.0 * i, *[float(i * i)] * 3) for i in range(20)})

    def test_nulls(self):
        df = session.range(3).select(F.when(F.col('id') > 0, F.array_repeat(F.lit(1.0), 64)).alias('image'))
        with self.assertRaisesRegex(Exception, "column 'image' has nulls"):
            hs.map_batches(df, 'digits', columns='image', server=driver.url).collect()


class Noted(predict.Patience):
    """Patience that leaves a file for each failure that it is asked about."""

    def __getattribute__(self, name):
        if name == 'total':
            with open(f'{FOLDER}/repeated-{os.getpid()}', 'a', encoding='ascii') as f:
                f.write('x')
        return super().__getattribute__(name)


class Kills(unittest.TestCase):
    def test_engine_and_server_are_killed(self):
        """The node's engine, its hearthd, which is away until a worker has felt it, and the engine again, in the midst of a job: no task fails,
        and each may only run once."""
        udf = hs.predict_udf(DIGITS + '/digits.onnx', return_type='array<float>', batch_size=50, patience=Noted())
        check(images(400).select('id', udf('image')).collect(), 400)  # the node has the model
        at, go = FOLDER + '/at', FOLDER + '/go'
        every = max(1, ROWS // PARTITIONS // BATCH // (len(KILLS) + 1))  # batches

        def gate(batches):
            """Of a partition, passes a part on before each kill and after the last one, each when the kill was done that it has waited for."""
            for n, b in enumerate(batches):
                k, more = divmod(n, every)
                if more == 0 and k in KILLS:
                    with open(f'{at}{k}', 'w', encoding='ascii'):
                        pass
                    while not os.path.exists(f'{go}{k}'):
                        time.sleep(0.005)
                yield b
        killed, failed = [], []

        def until(event):
            end = time.monotonic() + PATIENCE
            while not event():
                assert time.monotonic() < end, 'it does not come'
                time.sleep(0.001)

        def passes(k):
            with open(f'{go}{k}', 'w', encoding='ascii'):
                pass

        def kill():
            try:
                for k in KILLS:
                    until(lambda: os.path.exists(f'{at}{k}'))  # pylint: disable=cell-var-from-loop
                    killed.append(k)
                    if k == 2:
                        node.stop(signal.SIGKILL)
                        passes(k)
                        until(lambda: any(name.startswith('repeated') for name in os.listdir(FOLDER)))
                        node.start()
                    else:
                        node.kill_engine()
                        passes(k)
            except BaseException as e:  # pylint: disable=broad-except
                failed.append(e)
                for k in KILLS:
                    passes(k)
        thread = threading.Thread(target=kill)
        thread.start()
        source = images()
        try:
            rows = source.mapInArrow(gate, source.schema).select('id', udf('image')).collect()
        finally:
            thread.join(PATIENCE)
        self.assertEqual((killed, failed), ([*KILLS], []))
        self.assertEqual(session.sparkContext.getConf().get('spark.task.maxFailures'), '1')
        check(rows)


class Memory(unittest.TestCase):
    def test_per_worker(self):
        """Two workers at a time, with a model of 64 MiB: what each has for itself once it predicts, beyond what it had before."""
        rows, columns = 1024, 16384
        weights = np.random.default_rng(1).random(rows * columns, np.float32)
        path = file_of('weights.onnx', spark_server.product(rows, columns, weights.tobytes()))
        sent = pickle.dumps(hs._predictor(path, None, predict.Patience(), None))
        session.sparkContext.environment['HEARTH_TEST'] = 'memory'  # workers of another environment are other ones: none has seen hearth
        self.addCleanup(session.sparkContext.environment.pop, 'HEARTH_TEST')

        def measure(batches):
            import pandas  # noqa: F401  pylint: disable=unused-import
            from pyspark.ml.functions import predict_batch_udf  # noqa: F401  pylint: disable=unused-import

            def own():
                gc.collect()
                with open('/proc/self/smaps_rollup', encoding='ascii') as f:
                    fields = dict(line.split()[:2] for line in f if ':' in line.split()[0])
                return [int(fields['Private_Clean:']) + int(fields['Private_Dirty:']), int(fields['Pss:'])]
            part = next(iter(batches)).column(0).to_pylist()[0]
            x = np.ones((8, rows), np.float32)
            assert 'hearthd' not in sys.modules
            before = own()
            p = pickle.loads(sent)
            for _ in range(20):
                p(x)
            after = own()
            with open(f'{FOLDER}/worker{part}', 'w', encoding='ascii'):
                pass
            until = time.monotonic() + PATIENCE
            while not all(os.path.exists(f'{FOLDER}/worker{i}') for i in (0, 1)) and time.monotonic() < until:
                time.sleep(0.01)
            yield pa.RecordBatch.from_arrays([pa.array([v]) for v in (os.getpid(), after[0] - before[0], after[1] - before[1])],
                                             names=['pid', 'own', 'pss'])
        found = session.range(2, numPartitions=2).mapInArrow(measure, 'pid bigint, own bigint, pss bigint').collect()
        self.assertEqual(len({r.pid for r in found}), 2)
        for r in found:
            print(f'# a worker more: {r.own / 1024:.1f} MiB of its own, {r.pss / 1024:.1f} MiB PSS; the weights are 64 MiB', flush=True)
            self.assertLess(r.own, 16 * 1024)


class Training(unittest.TestCase):
    def test_fit(self):
        from hearthd._memory import read_safetensors
        samples = read_safetensors(DIGITS + '/train.safetensors')
        x, y = samples['image'][:640], samples['y'][:640]
        import pandas
        df = session.createDataFrame(pandas.DataFrame({'image': list(x.reshape(640, 64)), 'label': y})).coalesce(1)
        options = {'loss': 'softmax-xent', 'optimizer': 'adam', 'lr': 0.002, 'batch': 64, 'epochs': 2, 'seed': 1}
        job = hs.fit(df, 'new', x='image', y='label', name='of-spark', save_as='fitted', **options)
        self.assertIsInstance(job, hearthd.Job)
        got = job.result()
        with hearthd.Client() as c:
            want = c.train('new', {'x': x, 'y': y}, save_as='plain', **options)
            np.testing.assert_allclose(got.losses, want.losses, rtol=1e-5)
            self.assertEqual(got.model, 'fitted')
            self.assertIn('of-spark', {d['name'] for d in c.datasets()})
            c.remove_data('of-spark')
            kept = len(c.datasets())
            for words, call in (('none', lambda: hs.fit(df, 'new', x='image', y='label', **{**options, 'optimizer': 'none'})),
                                ('no rows', lambda: hs.fit(df.limit(0), 'new', x='image', y='label', **options))):
                with self.assertRaises(hearthd.Error) as caught:
                    call()
                self.assertIn(words, str(caught.exception))
            self.assertEqual(len(c.datasets()), kept)  # nothing is left of what was refused

    def two_calls(self, meanwhile, method='submit', **more):
        """fit of a few rows, and what another call does before this one submits its job, or stores its rows."""
        import pandas
        df = session.createDataFrame(pandas.DataFrame({'image': list(IMAGES[:20].reshape(20, 64)), 'label': LABELS[:20].astype(np.int64)})).coalesce(1)
        other, plain, once = hearthd.Client(), getattr(hearthd.Client, method), []
        self.addCleanup(other.close)

        def disturbed(client, *words, **options):
            if not once:
                once.append(next(w for w in words if w.startswith('spark-')))
                meanwhile(other, *words)
            return plain(client, *words, **options)
        setattr(hearthd.Client, method, disturbed)
        self.addCleanup(setattr, hearthd.Client, method, plain)
        options = {'loss': 'softmax-xent', 'batch': 10, 'epochs': 1, 'seed': 1, **more}
        try:
            return other, once, hs.fit(df, 'new', x='image', y='label', **options)
        finally:
            setattr(hearthd.Client, method, plain)

    def test_another_call_is_refused(self):
        """Two calls with the same rows have one dataset. That the other one is refused and removes it, does not harm."""
        other, names, job = self.two_calls(lambda c, model, name: c.remove_data(name))
        job.result()
        other.remove_data(names[0])

    def test_both_calls_are_refused(self):
        """This one says why, not that there is nothing to remove."""
        with self.assertRaisesRegex(hearthd.Error, "optimizer 'none'"):
            self.two_calls(lambda c, model, name: c.remove_data(name), optimizer='none')

    def test_what_another_call_stored_stays(self):
        """Whether it was there before this call looked, or came between that and its own rows."""
        with hearthd.Client() as c:
            stored = []

            def store(other, name, path):
                stored.append(name)
                other.put_data(name, path)
            for _ in range(2):
                with self.assertRaisesRegex(hearthd.Error, "optimizer 'none'"):
                    self.two_calls(store, 'put_data', optimizer='none')
                self.assertIn(stored[0], {d['name'] for d in c.datasets()})
            c.remove_data(stored[0])


class Resources(unittest.TestCase):
    def test_script(self):
        run = subprocess.run([FOLDER + '/discover'], check=True, capture_output=True, text=True)
        self.assertEqual(run.stdout, '{"name": "hearth", "addresses": ["cpu:0"]}\n')
        run = subprocess.run([FOLDER + '/discover'], check=False, capture_output=True, text=True,
                             env={**os.environ, 'HEARTH_SERVER': f'ipc://{FOLDER}/nobody'})
        self.assertEqual((run.returncode, run.stdout), (1, ''))
        self.assertRegex(run.stderr, '^hearthd-spark-resource: .*no server at')

    def test_spark_reads_it(self):
        self.assertEqual(session.sparkContext.resources['hearth'].addresses, ['cpu:0'])


class Documents(unittest.TestCase):
    """The examples of docs/spark.md, as they stand there but for the server's address and the files."""

    @classmethod
    def setUpClass(cls):
        with open(os.path.join(ROOT, 'docs', 'spark.md'), encoding='utf-8') as f:
            cls.blocks = re.findall(r'```python\n(.*?)```', f.read(), re.S)

    def block(self, word):
        found = [b for b in self.blocks if word in b]
        self.assertEqual(len(found), 1, word)
        return found[0].replace('ipc:///run/hearth.sock', driver.url)

    def test_every_block_is_run(self):
        self.assertEqual([next(w for w in ('predict_udf', 'import dask', 'import ray') if w in b) for b in self.blocks],
                         ['predict_udf', 'import dask', 'import ray'])

    def test_spark(self):
        names = {'df': images(400), 'train': images(400).withColumn('label', F.col('id') % 10)}
        with hearthd.Client(node.url) as c:
            c.import_model('digits', DIGITS + '/digits.onnx')  # on this machine nothing is sent
        exec(self.block('predict_udf'), names)  # pylint: disable=exec-used
        check(names['scored'].select('id', 'logits').collect(), 400)
        check(names['faster'].select('id', 'logits').collect(), 400)
        self.assertEqual(names['trained'].model, 'better')

    def test_dask(self):
        if importlib.util.find_spec('dask') is None:
            self.skipTest('Dask is not installed (make deps-spark)')
        names = {'images': IMAGES}
        exec(self.block('import dask'), names)  # pylint: disable=exec-used
        np.testing.assert_allclose(names['logits'], Expected.logits, rtol=1e-4, atol=1e-4)
        import dask
        with dask.config.set(scheduler='processes', num_workers=2):
            exec(self.block('import dask'), names)  # pylint: disable=exec-used
        np.testing.assert_allclose(names['logits'], Expected.logits, rtol=1e-4, atol=1e-4)

    def test_ray(self):
        if importlib.util.find_spec('ray') is None:
            self.skipTest('Ray is not installed (make deps-spark)')
        os.environ['RAY_AUTH_MODE'] = 'disabled'  # or it writes a token into the home folder
        import ray
        ray.init(num_cpus=2, include_dashboard=False, log_to_driver=False, object_store_memory=100 << 20, _temp_dir=FOLDER + '/ray')
        self.addCleanup(ray.shutdown)
        names = {'images': IMAGES}
        exec(self.block('import ray'), names)  # pylint: disable=exec-used
        np.testing.assert_allclose(np.sort(np.array(names['logits']), axis=0), np.sort(Expected.logits, axis=0), rtol=1e-4, atol=1e-4)


if __name__ == '__main__':
    os.chdir(ROOT)
    sys.exit(tap.run((Columns, Refused, Arrow, Kills, Memory, Training, Resources, Documents)))
