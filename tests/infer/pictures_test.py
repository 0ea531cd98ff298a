#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""`hearth infer` on data as people have it: pictures, archives of arrays, standard input, and names of classes. Models that answer what they
are given show what pictures became; what those should be is computed by numpy from the pixels that Pillow has read
(tests/tools/make_datasets.py). Speaks TAP. usage: tests/infer/pictures_test.py BUILD_DIR, from the root."""
import json
import os
import re
import shlex
import shutil
import subprocess
import sys
import tempfile
import unittest

sys.path.insert(0, os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
sys.dont_write_bytecode = True
import tap  # noqa: E402

tap.need_numpy()
import numpy as np  # noqa: E402
import onnx_small  # noqa: E402
from readme_test import session  # noqa: E402

BUILD = os.path.abspath(sys.argv[1] if len(sys.argv) > 1 else 'build')
DATA = os.path.abspath('tests/data')
IMAGES = DATA + '/datasets/images'
FILES = [f'{IMAGES}/{k}/{name}' for k in ('cat', 'dog') for name in sorted(os.listdir(f'{IMAGES}/{k}'))]
SIZES = [f'{DATA}/datasets/sizes/{name}/a.png' for name in ('one', 'two')]
NAMES = "{0: 'cat', 1: 'dog', 2: \"it's a fish\"}"


def floats(x, scale=1 / 255, mean=0, std=1, kind=np.float32):
    """What pixels (N, C, H, W) become."""
    mean, std = (np.asarray(v, np.float64).reshape(-1, 1, 1) for v in (mean, std))
    return ((x.astype(np.float64) * scale - mean) / std).astype(kind)


def gray(x):
    """What Pillow's convert('L') makes of (N, 3, H, W)."""
    x = x.astype(np.uint32)
    return ((x[:, :1] * 19595 + x[:, 1:2] * 38470 + x[:, 2:] * 7471 + 0x8000) >> 16).astype(np.uint8)


def scores(entries):
    """Each channel's largest value, divided by 32: exact in floats."""
    model = onnx_small.graph([('GlobalMaxPool', ['x'], ['most'], {}), ('Flatten', ['most'], ['flat'], {}), ('Mul', ['flat', 'by'], ['scores'], {})],
                             [('x', 'FP32', ('n', 3, 6, 9))], [('scores', 'FP32', ('n', 3))], [('by', 'FP32', (), (1 / 32,))])
    return onnx_small.metadata(model, {'Image.NominalPixelRange': 'NominalRange_0_255', **entries})


class Case(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.folder = tempfile.mkdtemp(prefix='hearth-pictures-')
        cls.daemon = tap.Daemon(BUILD)
        cls.url = f'ipc://{cls.daemon.folder}/sock'
        cls.pixels = np.load(DATA + '/datasets/images.x.npy')

    @classmethod
    def tearDownClass(cls):
        cls.daemon.stop()
        shutil.rmtree(cls.folder)

    @classmethod
    def path(cls, name):
        return f'{cls.folder}/{name}'

    @classmethod
    def write(cls, name, data):
        with open(cls.path(name), 'wb') as f:
            f.write(data)
        return cls.path(name)

    @classmethod
    def run_(cls, *words, data=b'', url=None):
        return subprocess.run([BUILD + '/hearth', '--server', url or cls.url, *words], input=data, capture_output=True, check=False, cwd=cls.folder,
                              timeout=120)

    @classmethod
    def hearth(cls, *words, data=b''):
        r = cls.run_(*words, data=data)
        if r.returncode != 0:
            raise AssertionError(f'{words}: {r.stderr.decode()}')
        return r.stdout.decode()

    @classmethod
    def model(cls, name, model):
        cls.hearth('import', name, cls.write(name + '.onnx', model))

    def refused(self, sentence, *words, code=1, data=b''):
        r = self.run_('infer', *words, data=data)
        said = r.stderr.decode()
        self.assertEqual((r.returncode, r.stdout), (code, b''), said)
        self.assertIn(sentence, said)
        self.assertEqual(said.count('\n'), 1, said)

    def outputs(self, *words, data=b''):
        """Each output of an inference."""
        out = tempfile.mkdtemp(dir=self.folder)
        self.hearth('infer', *words, '--output-dir', out, data=data)
        return {name[:-4]: np.load(f'{out}/{name}') for name in os.listdir(out)}

    def same(self, wanted, *words, data=b''):
        got = self.outputs(*words, data=data)['OUTPUT0']
        self.assertEqual((got.dtype, got.shape), (wanted.dtype, wanted.shape))
        self.assertEqual(got.tobytes(), wanted.tobytes(), words)


def inputs(files, name=''):
    return [word for f in files for word in ('--input', name + f)]


class Pictures(Case):
    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        for name, kind, dims in (('nchw', 'FP32', ('n', 3, 6, 9)), ('nhwc', 'FP32', ('n', 6, 9, 3)), ('gray', 'FP32', ('n', 1, 6, 9)),
                                 ('half', 'FP16', ('n', 3, 6, 9)), ('bytes', 'UINT8', ('n', 3, 6, 9)), ('open', 'FP32', ('n', 3, 'h', 'w')),
                                 ('sized', 'UINT8', ('n', 1, 10, 12)), ('free', 'UINT8', ('n', 'h', 'w', 1)), ('one', 'UINT8', (1, 3, 6, 9)),
                                 ('two', 'UINT8', (2, 3, 6, 9)), ('single', 'UINT8', (3, 6, 9)), ('four', 'FP32', ('n', 4, 6, 9)),
                                 ('int', 'INT32', ('n', 3, 6, 9)), ('flat', 'FP32', ('n', 9)), ('high', 'UINT8', ('n', 'h', 12, 1)),
                                 ('broad', 'UINT8', ('n', 10, 'w', 1))):
            cls.model(name, onnx_small.identity(kind, dims))
        cls.model('pair', onnx_small.identity('UINT8', ('n', 3, 6, 9), 2))

    def test_values(self):
        """PNG of every kind and JPEG, as each type and layout."""
        x = self.pixels
        self.assertEqual(len(FILES), len(x))
        words = inputs(FILES)
        self.same(floats(x), 'nchw', *words)
        self.same(np.ascontiguousarray(floats(x).transpose(0, 2, 3, 1)), 'nhwc', *words)
        self.same(floats(x, kind=np.float16), 'half', *words)
        self.same(x, 'bytes', *words)
        self.same(floats(gray(x)), 'gray', *words)
        self.same(x[:1], 'one', *inputs(FILES[:1]))
        self.same(x[1], 'single', *inputs(FILES[1:2]))
        self.same(x[:2], 'two', *inputs(FILES[:2], 'INPUT0='))

    def test_options(self):
        x, words = self.pixels, inputs(FILES, 'INPUT0=')
        self.same(floats(x, 1), 'nchw', *words, '--scale', '1')
        self.same(floats(x, 1 / 128, 1), 'nchw', *words, '--scale', '1/128', '--mean', '1')
        mean, std = [0.485, 0.456, 0.406], [0.229, 0.224, 0.225]
        self.same(floats(x, 1 / 255, mean, std), 'nchw', *words, '--mean', '0.485,0.456,0.406', '--std', '0.229,0.224,0.225')
        self.same(floats(x, 1 / 255, mean, std, np.float16), 'half', *words, '--mean', '0.485,0.456,0.406', '--std', '0.229,0.224,0.225')
        self.same(np.ascontiguousarray(floats(x, 1, mean).transpose(0, 2, 3, 1)), 'nhwc', *words, '--scale', '1', '--mean', '0.485,0.456,0.406')
        self.same(np.ascontiguousarray(x[:, ::-1]), 'bytes', *words, '--bgr')
        self.same(x, 'bytes', *words, '--bgr', 'off')
        self.same(floats(np.ascontiguousarray(x[:, ::-1]), 1, [1, 2, 3]), 'nchw', *words, '--bgr', 'on', '--scale', '1', '--mean', '1,2,3')

    def test_size(self):
        """Bilinear resampling is Pillow's."""
        sized = np.load(DATA + '/datasets/sizes.x.npy')
        self.same(sized, 'sized', *inputs(SIZES))
        self.same(np.ascontiguousarray(sized.transpose(0, 2, 3, 1)), 'free', *inputs(SIZES), '--size', '10x12')
        self.same(sized, 'sized', *inputs(SIZES), '--size', '10x12')
        self.same(floats(self.pixels), 'open', *inputs(FILES))
        self.assertEqual(self.outputs('free', *inputs(SIZES[1:]))['OUTPUT0'].shape, (1, 23, 31, 1))
        self.refused("has 23x31 pixels (height x width), but", 'free', *inputs(SIZES))
        self.refused('--size HxW resamples all', 'free', *inputs(SIZES))
        for picture, (height, width) in zip(SIZES, ((6, 9), (23, 31))):  # of two sides one is open: the first picture's
            self.assertEqual(self.outputs('high', *inputs([picture]))['OUTPUT0'].shape, (1, height, 12, 1))
            self.same(self.outputs('free', *inputs([picture]), '--size', f'{height}x12')['OUTPUT0'], 'high', *inputs([picture]))
            self.same(self.outputs('free', *inputs([picture]), '--size', f'10x{width}')['OUTPUT0'], 'broad', *inputs([picture]))
        self.refused("has 23 pixels in height, but", 'high', *inputs(SIZES))
        self.refused("has 31 pixels in width, but", 'broad', *inputs(SIZES))
        self.refused("input 'INPUT0' UINT8 [-1,1,10,12]: its pictures cannot have 10x13 pixels", 'sized', *inputs(SIZES), '--size', '10x13')
        self.refused("'10' is not a size: HxW", 'free', *inputs(SIZES), '--size', '10')
        self.refused('an image of 40000x40000 pixels', 'free', *inputs(SIZES), '--size', '40000x40000')

    def test_folders_and_streams(self):
        self.same(self.pixels[:4], 'bytes', '--input', IMAGES + '/cat')
        self.same(self.pixels, 'bytes', '--input', IMAGES + '/cat', '--input', IMAGES + '/dog')
        for k in (0, 5):
            with open(FILES[k], 'rb') as f:
                data = f.read()
            for word in ('-', 'INPUT0=-', '/dev/stdin'):
                self.same(self.pixels[k:k + 1], 'bytes', '--input', word, data=data)
            self.same(self.pixels[[1, k]], 'bytes', '--input', FILES[1], '--input', '-', data=data)
            self.refused('a damaged', 'bytes', '--input', '-', data=data[:60])
        got = self.outputs('pair', *inputs(FILES[:2], 'INPUT0='), *inputs(FILES[4:6], 'INPUT1='))
        self.assertEqual(got['OUTPUT0'].tobytes(), self.pixels[:2].tobytes())
        self.assertEqual(got['OUTPUT1'].tobytes(), self.pixels[4:6].tobytes())

    def test_damaged(self):
        """A picture that is cut is refused or, behind its last pixel, as before; the sentence names it."""
        for k in (0, 5, 6):
            with open(FILES[k], 'rb') as f:
                data = f.read()
            for n in (0, 1, 5, 40, len(data) // 2, len(data) - 20):
                path = self.write('cut.png', data[:n])
                r = self.run_('infer', 'bytes', '--input', path)
                self.assertEqual((r.returncode, r.stdout), (1, b''), (k, n))
                self.assertIn(path, r.stderr.decode())
                self.assertEqual(r.stderr.count(b'\n'), 1)
        self.refused("'" + self.write('bad.jpg', data[:300]) + "': a damaged JPEG: ", 'bytes', '--input', self.path('bad.jpg'))

    def test_wrong(self):
        files = inputs(FILES[:2])
        self.refused("input 'INPUT0' FP32 [-1,4,6,9]: pictures have 1 or 3 channels", 'four', *files)
        self.refused("input 'INPUT0' INT32 [-1,3,6,9]: pictures become FP32, FP16 or UINT8", 'int', *files)
        self.refused("input 'INPUT0' FP32 [-1,9]: pictures need 4 dimensions", 'flat', *files)
        self.refused('it takes 1 picture at a time, not 2', 'one', *files)
        self.refused('it takes 1 picture at a time, not 2', 'single', *files)
        self.refused('it takes 2 pictures at a time, not 1', 'two', *files[:2])
        self.refused("model 'pair' has the inputs 'INPUT0' UINT8 [-1,3,6,9], 'INPUT1' UINT8 [-1,3,6,9]; --input NAME=FILE says", 'pair', *files)
        self.refused("model 'bytes' has no input 'INPT0'; did you mean 'INPUT0'?", 'bytes', *inputs(FILES[:1], 'INPT0='))
        self.refused("model 'bytes' has no input 'picture'; it has 'INPUT0' UINT8 [-1,3,6,9]", 'bytes', *inputs(FILES[:1], 'picture='))
        self.refused("no model 'byts'; did you mean 'bytes'?", 'byts', *files)
        os.makedirs(self.path('empty'), exist_ok=True)
        self.refused(f"the folder '{self.path('empty')}' is empty", 'bytes', '--input', self.path('empty'))
        self.refused("is no picture: neither .png, .jpg nor .jpeg", 'bytes', '--input', DATA + '/digits')
        self.refused("No such file", 'bytes', '--input', self.path('nothing.png'))
        self.refused("not a .npy file, and neither .npz, PNG nor JPEG", 'bytes', '--input', DATA + '/digits/README.md')
        self.refused("two inputs are to come from standard input", 'pair', '--input', 'INPUT0=-', '--input', 'INPUT1=/dev/stdin', code=2)
        self.refused("lacks the input's name", 'bytes', '--input', '=x.png', code=2)
        self.refused("input 'INPUT0' is given twice", 'bytes', '--input', 'INPUT0=' + DATA + '/datasets/bytes.x.npy', *inputs(FILES[:1], 'INPUT0='))
        self.refused("--scale is for floats", 'bytes', *files, '--scale', '1')
        self.refused("--size is for pictures, and no input is one", 'bytes', '--input', DATA + '/datasets/bytes.x.npy', '--size', '3x4', code=2)
        for option, value, sentence in (('--scale', '0', "--scale '0' is no number like 1/255"), ('--scale', '1/0', 'is no number like'),
                                        ('--scale', '1x', 'is no number like'), ('--mean', '1,2', '--mean has 2 values, but the input has 3 channels'),
                                        ('--mean', 'a', "--mean 'a' is not a list"), ('--mean', '1,2,3,4', 'is not a list of up to 3'),
                                        ('--std', '1,0,1', '--std has a 0'), ('--std', '', '--std has no values'), ('--bgr=yes', None, '--bgr is on or off'),
                                        ('--scale', '1e300', 'scale, mean and std make values from')):
            self.refused(sentence, 'nchw', *files, *((option,) if value is None else (option, value)))
        self.refused('make values from 0 to 255000', 'half', *files, '--scale', '1000')


class Metadata(Case):
    def test_what_the_model_says(self):
        x, words = self.pixels, inputs(FILES)
        cases = [({'Image.NominalPixelRange': 'NominalRange_0_255'}, floats(x, 1)),
                 ({'image.nominalpixelrange': 'normalized_0_1'}, floats(x)),
                 ({'Image.NominalPixelRange': 'Normalized_1_1'}, floats(x, 2 / 255, 1)),
                 ({'Image.NominalPixelRange': 'NominalRange_16_235'}, floats(x, 219 / 255, -16)),
                 ({'Image.BitmapPixelFormat': 'Bgr8', 'Image.ColorSpaceGamma': 'SRGB'}, floats(np.ascontiguousarray(x[:, ::-1]))),
                 ({'Image.BitmapPixelFormat': 'Rgb8'}, floats(x)),
                 ({'hearth.scale': '1/128', 'hearth.mean': '[0.5, 0.25, 1]', 'hearth.std': '0.5', 'scale': '7'}, floats(x, 1 / 128, [0.5, 0.25, 1], 0.5)),
                 ({'hearth.scale': '2', 'Image.NominalPixelRange': 'Normalized_1_1'}, floats(x, 2, 1)),
                 ({'hearth.size': '3x4', 'imgsz': '[224, 224]', 'names': 'not classes'}, floats(x))]
        for i, (entries, wanted) in enumerate(cases):
            self.model(f'm{i}', onnx_small.metadata(onnx_small.identity('FP32', ('n', 3, 6, 9)), entries))
            self.same(wanted, f'm{i}', *words)
        self.same(floats(x, 1 / 2, 1), 'm2', *words, '--scale', '1/2')
        self.same(floats(x, 2 / 255), 'm2', *words, '--mean', '0')
        self.same(floats(x), 'm4', *words, '--bgr', 'off')
        for i, (entries, sentence) in enumerate([({'Image.ColorSpaceGamma': 'linear'}, 'linear colours (Image.ColorSpaceGamma)'),
                                                 ({'Image.NominalPixelRange': 'wide'}, "Image.NominalPixelRange 'wide' is unknown"),
                                                 ({'hearth.mean': 'much'}, "the model's hearth.mean 'much' is not a list"),
                                                 ({'hearth.std': '0'}, "the model's hearth.std has a 0")]):
            self.model(f'bad{i}', onnx_small.metadata(onnx_small.identity('FP32', ('n', 3, 6, 9)), entries))
            self.refused(sentence, f'bad{i}', *words)
        self.same(floats(x, 1, 2), 'bad1', *words, '--scale', '1', '--mean', '2')
        sized = np.load(DATA + '/datasets/sizes.x.npy')
        for name, entries in (('imgsz', {'imgsz': '[10, 12]', 'names': NAMES}), ('size', {'hearth.size': '10x12', 'imgsz': '[3, 3]'})):
            self.model(name, onnx_small.metadata(onnx_small.identity('UINT8', ('n', 1, 'h', 'w')), entries))
            self.same(sized, name, *inputs(SIZES))
        self.assertEqual(self.outputs('imgsz', *inputs(SIZES), '--size', '5x6')['OUTPUT0'].shape, (2, 1, 5, 6))

    def test_kept(self):
        """Through import, export and push; what is the same model with other metadata is another version."""
        entries = {'names': NAMES, 'hearth.scale': '1', 'author': 'Zoë', 'empty': '', 'long': 'x' * 5000}
        model = onnx_small.identity('FP32', ('n', 3, 6, 9))
        self.model('kept', onnx_small.metadata(model, entries))

        def shown(name):
            return json.loads(self.hearth('--json', 'show', name))['metadata']
        self.assertEqual(shown('kept'), entries)
        self.assertIn('(unchanged', self.hearth('import', 'kept', self.path('kept.onnx')))
        self.assertEqual(json.loads(self.hearth('--json', 'show', 'kept'))['version'], 1)
        self.hearth('export', 'kept', self.path('out.onnx'))
        self.hearth('import', 'again', self.path('out.onnx'))
        self.assertEqual(shown('again'), entries)
        self.model('kept', onnx_small.metadata(model, {**entries, 'author': 'Ada'}))
        self.assertEqual((json.loads(self.hearth('--json', 'show', 'kept'))['version'], shown('kept')['author']), (2, 'Ada'))
        self.model('none', model)
        self.assertEqual(shown('none'), {})
        self.assertNotIn('metadata', self.hearth('show', 'none'))
        text = self.hearth('show', 'again')
        self.assertRegex(text, r"(?m)^metadata:\n")
        self.assertRegex(text, r"(?m)^long +x{90,100} \.\.$")
        self.assertIn('Zoë', text)

    def test_not_text(self):
        """What JSON has no place for is not told, nor is what goes beyond the limit; the model itself is as good."""
        b = onnx_small._bytes
        model = onnx_small.identity('FP32', ('n', 3, 6, 9))
        model += b(14, b(1, b'\xff') + b(2, b'v')) + b(14, b(1, b'k') + b(2, b'\xff')) + b(14, b(1, b'z\0') + b(2, b'v')) + b(14, b(2, b'no key'))
        model += b(14, b'\xff') + b(14, b(1, b'huge') + b(2, b'x' * (1 << 20))) + b(14, b(1, b'a') + b(2, b'first')) + b(14, b(1, b'a') + b(2, b'second'))
        self.model('odd', model)
        self.assertEqual(json.loads(self.hearth('--json', 'show', 'odd'))['metadata'], {'a': 'first'})
        self.same(floats(self.pixels), 'odd', *inputs(FILES))


class Arrays(Case):
    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        cls.model('pair', onnx_small.identity('FP32', ('n', 2), 2))
        cls.model('one', onnx_small.identity('FP32', ('n', 2)))
        cls.a = np.arange(6, dtype=np.float32).reshape(3, 2)
        cls.b = cls.a + 10

    def both(self, *words, data=b''):
        got = self.outputs('pair', *words, data=data)
        self.assertEqual([got[f'OUTPUT{i}'].tolist() for i in range(2)], [self.a.tolist(), self.b.tolist()])

    def test_archives(self):
        for save in (np.savez, np.savez_compressed):
            save(self.path('both.npz'), INPUT1=np.asfortranarray(self.b), INPUT0=self.a)
            self.both('--input', 'both.npz')
            self.both('--input', 'INPUT0=both.npz', '--input', 'INPUT1=both.npz:INPUT1')
            with open(self.path('both.npz'), 'rb') as f:
                self.both('--input', '-', data=f.read())
            save(self.path('other.npz'), x=self.a, y=self.b, names=np.array(['cat', 'dog']), one=np.float32(3))
            self.both('--input', 'INPUT0=other.npz:x', '--input', 'INPUT1=other.npz:y')
            with open(self.path('other.npz'), 'rb') as f:
                self.both('--input', 'INPUT0=-:x', '--input', 'INPUT1=other.npz:y', data=f.read())
            save(self.path('alone.npz'), self.a)
            self.assertEqual(self.outputs('one', '--input', 'alone.npz')['OUTPUT0'].tolist(), self.a.tolist())
            self.assertEqual(self.outputs('one', '--input', 'other.npz:y')['OUTPUT0'].tolist(), self.b.tolist())
            save(self.path('a:b=c.npz'), INPUT0=self.a, INPUT1=self.b)
            self.both('--input', 'a:b=c.npz')

    def test_wrong(self):
        np.savez(self.path('other.npz'), x=self.a, y=self.b, names=np.array(['cat', 'dog']))
        self.refused("'other.npz' has no array 'z'; it has 'x', 'y', 'names'", 'one', '--input', 'INPUT0=other.npz:z')
        self.refused("'other.npz' has the arrays 'x', 'y', 'names'; INPUT0=FILE.npz:ARRAY says which one", 'one', '--input', 'INPUT0=other.npz')
        self.refused("other.npz: 'names': numpy's type", 'one', '--input', 'INPUT0=other.npz:names')
        with open(self.path('other.npz'), 'rb') as f:
            data = bytearray(f.read())
        at = data.index(self.a.tobytes())
        data[at] ^= 1
        self.refused("'x' is damaged: its checksum differs", 'one', '--input', 'INPUT0=' + self.write('bad.npz', bytes(data)) + ':x')
        self.refused('is no zip archive', 'one', '--input', self.write('cut.npz', bytes(data[:200])))
        self.refused('is no zip archive', 'one', '--input', '-', data=bytes(data[:200]))
        np.save(self.path('a.npy'), self.a)
        np.save(self.path('wide.npy'), np.zeros((3, 5), np.float32))
        shutil.copy(self.path('a.npy'), self.path('fake.npz'))
        self.refused("'fake.npz' is no .npz file, which has arrays", 'one', '--input', 'fake.npz:x')
        for path, sentence in ((self.path('a.npy'), "'standard input' is no .npz file, which has arrays"), (FILES[0], 'is no .npz file, which has arrays')):
            with open(path, 'rb') as f:
                self.refused(sentence, 'one', '--input', 'INPUT0=-:b', data=f.read())
        self.refused("Expected [-1,2], got [3,5]", 'one', '--input', 'wide.npy')
        self.refused("model 'pair' has no input 'INPUT'; did you mean 'INPUT0'?", 'pair', '--input', 'INPUT0=a.npy', '--input', 'INPUT=a.npy')
        self.refused("'OTHER'", 'one', '--input', 'OTHER=a.npy')
        self.refused("input 'INPUT0' is given twice", 'pair', '--input', 'INPUT0=a.npy', '--input', 'INPUT0=a.npy')
        with open(self.path('empty.npz'), 'wb') as f:
            f.write(b'PK\5\6' + bytes(18))
        self.refused("'empty.npz' has no arrays", 'one', '--input', 'empty.npz')


class Classes(Case):
    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        for name, entries in (('pets', {'names': NAMES}), ('plain', {}), ('json', {'id2label': '{"2": "fish", "0": "cat", "1": "d\\u00f6g"}'}),
                              ('list', {'classes': '["cat", "dog", "fish"]'}), ('lines', {'labels': 'cat\ndog\nfish\n'}), ('other', {'names': 'a,b'})):
            cls.model(name, scores(entries))
        cls.model('rows', onnx_small.metadata(onnx_small.identity('FP32', ('n', 7)), {'class_names': 'a, b, c, d, e, f, g'}))
        cls.values = cls.pixels.max(axis=(2, 3)).astype(np.float32) / 32

    def best(self, *words, data=b''):
        return json.loads(self.hearth('--json', 'infer', *words, data=data))['outputs'][0].get('classes')

    def check(self, classes, values, names, probabilities, samples):
        self.assertEqual(len(classes['samples']), len(values))
        for got, row, p, sample in zip(classes['samples'], values, probabilities, samples):
            order = np.argsort(-row, kind='stable')[:5]
            self.assertEqual(got['sample'], sample)
            self.assertEqual([g['index'] for g in got['best']], order.tolist())
            self.assertEqual([g['name'] for g in got['best']], [names[i] for i in order])
            np.testing.assert_array_equal([g['value'] for g in got['best']], row[order])
            np.testing.assert_allclose([g['probability'] for g in got['best']], p[order], rtol=1e-12)

    def test_names(self):
        e = np.exp(self.values.astype(np.float64))
        softmax = e / e.sum(axis=1, keepdims=True)
        words = inputs(FILES)
        for model, names in (('pets', ['cat', 'dog', "it's a fish"]), ('json', ['cat', 'dög', 'fish']), ('list', ['cat', 'dog', 'fish']),
                             ('lines', ['cat', 'dog', 'fish'])):
            got = self.best(model, *words)
            self.assertEqual(got['probabilities'], 'softmax')
            self.check(got, self.values, names, softmax, FILES)
        self.assertIsNone(self.best('plain', *words))
        self.assertIsNone(self.best('other', *words))
        for text in (b'x\r\ny y\r\nz\r\n', b'["x", "y y", "z"]', "{'0': 'x', 1: 'y y', 2: 'z'}".encode(), b'\xef\xbb\xbfx\ny y\nz'):
            got = self.best('pets', *words, '--classes', self.write('names', text))
            self.check(got, self.values, ['x', 'y y', 'z'], softmax, FILES)
        np.save(self.path('x.npy'), floats(self.pixels, 1))
        self.check(self.best('pets', '--input', 'x.npy'), self.values, ['cat', 'dog', "it's a fish"], softmax, range(8))

    def test_distribution(self):
        """What is a distribution already stays; five of seven, the first of equal ones first."""
        random = np.random.default_rng(3)
        values = random.dirichlet(np.ones(7), 4).astype(np.float32)
        values[2] = [0.1, 0.1, 0.3, 0.1, 0.1, 0.3, 0]
        np.save(self.path('p.npy'), values)
        got = self.best('rows', '--input', 'p.npy')
        self.assertEqual(got['probabilities'], 'values')
        self.check(got, values, 'abcdefg', values.astype(np.float64), range(4))
        said = self.hearth('infer', 'rows', '--input', 'p.npy')
        self.assertIn('probabilities: the values, which are a distribution', said)
        self.assertIn('  sample 2:  c 30.00 %  f 30.00 %  a 10.00 %  b 10.00 %  d 10.00 %\n', said)
        values[3] *= 2  # of one row the sum is not 1
        np.save(self.path('q.npy'), values)
        self.assertEqual(self.best('rows', '--input', 'q.npy')['probabilities'], 'softmax')
        odd = np.array([[np.nan] * 7, [np.inf, 1, 2, 3, 4, 5, 6], [1e30, -1e30, 0, 0, 0, 0, 0], [np.nan, 3, 1, 2, 0, 0, 0]], np.float32)
        np.save(self.path('odd.npy'), odd)
        got = self.best('rows', '--input', 'odd.npy')['samples']
        self.assertEqual(got[0]['best'], [])
        self.assertEqual((got[1]['best'][0]['name'], got[1]['best'][0]['value'], got[1]['best'][0]['probability']), ('a', None, None))
        self.assertEqual((got[2]['best'][0]['name'], got[2]['best'][0]['probability']), ('a', 1))
        self.assertEqual([g['name'] for g in got[3]['best']], list('bdcef'))
        self.assertEqual(got[3]['best'][0]['probability'], None)
        self.hearth('infer', 'rows', '--input', 'odd.npy')
        np.save(self.path('many.npy'), np.zeros((102, 7), np.float32))
        said = self.hearth('infer', 'rows', '--input', 'many.npy')
        self.assertIn('.. and 2 more samples, which --json has', said)
        self.assertIn('  sample 99:  a 14.29 % (0)', said)

    def test_wrong(self):
        words = ('pets', *inputs(FILES[:1]), '--classes')
        self.refused("names 2 classes, but output 'scores' is FP32 [1,3], not [samples,2] of floats", *words, self.write('two', b'a\nb\n'), code=2)
        for text, sentence in ((b'', 'the list of classes is empty'), (b'a\n\nb\n', 'class 1 of the list has no name'),
                               (b"{0: 'a', 2: 'b'}", 'only 2 have names'), (b"{0: 'a', 0: 'b'}", 'class 0 has two names'),
                               (b'["a', 'a string without an end'), (b'[1, 2]', 'something other than strings'),
                               (b"['a' 'b']", 'no comma'), (b'["a"] x', 'something after its end'), (b'a\n\xff\n', 'class 1 is not UTF-8')):
            self.refused(sentence, *words, self.write('bad', text))
            self.refused(self.path('bad') + ': ', *words, self.path('bad'))
        self.refused('No such file', *words, self.path('nothing'))


class Documents(Case):
    """The commands of docs/pictures.md and of the help."""
    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        cls.model('pets', scores({'names': "{0: 'dog', 1: 'fish', 2: 'cat'}"}))
        cls.model('digits', onnx_small.identity('FP32', ('n', 1, 8, 8)))
        cls.model('pair', onnx_small.graph([('Add', ['left', 'right'], ['sum'], {})], [(k, 'FP32', ('n',)) for k in ('left', 'right')],
                                           [('sum', 'FP32', ('n',))]))
        shutil.copy(IMAGES + '/dog/b-baseline.jpg', cls.path('cat.jpg'))
        shutil.copy(IMAGES + '/cat/b-palette.png', cls.path('dog.png'))
        shutil.copytree(IMAGES + '/cat', cls.path('photos'))
        np.save(cls.path('images.npy'), np.zeros((2, 1, 8, 8), np.float32))
        np.save(cls.path('a.npy'), np.arange(3, dtype=np.float32))
        np.savez(cls.path('arrays.npz'), b=np.arange(3, dtype=np.float32), c=np.zeros(9))
        cls.write('pets.txt', b'cat\ndog\nfish\n')

    def type(self, line):
        line = line.replace('hearth ', f'{shlex.quote(BUILD)}/hearth --server {self.url} ', 1)
        r = subprocess.run(['sh', '-c', line], cwd=self.folder, capture_output=True, text=True, check=False, timeout=120)
        self.assertEqual(r.returncode, 0, r.stderr)
        return r.stdout

    def test_page(self):
        with open('docs/pictures.md', encoding='utf-8') as f:
            commands = session(f.read())
        self.assertEqual(len(commands), 1)
        for line, printed in commands:
            self.assertEqual(self.type(line), '\n'.join(filter(None, printed)) + '\n')

    def test_help(self):
        text = self.hearth('help', 'infer')
        examples = re.findall(r'^  (hearth infer .*)$', text.split('\nExamples:\n')[1], re.M)
        self.assertEqual(len(examples), 5)
        for line in examples:
            self.type(line)


if __name__ == '__main__':
    sys.exit(tap.run([Pictures, Metadata, Arrays, Classes, Documents]))
