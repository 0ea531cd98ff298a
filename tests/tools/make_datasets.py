#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Makes tests/data/datasets: small datasets of every format that hearth reads, written by numpy and Pillow, and what they
read them as (NAME.x.npy, NAME.y.npy), for client/data/data_test.c. Needs numpy and Pillow.
usage: tests/tools/make_datasets.py [OUTPUT_DIR]
"""
import gzip
import os
import struct
import sys

import numpy as np
from PIL import Image

out = sys.argv[1] if len(sys.argv) > 1 else os.path.join(os.path.dirname(__file__), '..', 'data', 'datasets')
random = np.random.default_rng(5)


def path(*parts):
    full = os.path.join(out, *parts)
    os.makedirs(os.path.dirname(full), exist_ok=True)
    return full


def expect(name, x, y):
    np.save(path(name + '.x.npy'), x)
    np.save(path(name + '.y.npy'), y)


def idx(file, array):
    kinds = {'u1': 8, 'i1': 9, 'i2': 11, 'i4': 12, 'f4': 13, 'f8': 14}
    file.write(bytes([0, 0, kinds[array.dtype.str[1:]], array.ndim]) + struct.pack(f'>{array.ndim}I', *array.shape))
    file.write(array.astype(array.dtype.newbyteorder('>')).tobytes())


# numpy: stored, deflated, in Fortran order, without names
x = random.integers(0, 256, (7, 3, 5), dtype=np.uint8)
y = random.integers(0, 4, 7)
expect('bytes', x, y)
np.savez(path('stored.npz'), x=x, y=y)
np.savez_compressed(path('deflated.npz'), x, y)
np.savez(path('fortran.npz'), x=np.asfortranarray(x), y=y)

# a table, as pandas and spreadsheets write them
table = random.normal(size=(6, 3)).astype(np.float32)
label = np.array([0, 2, 1, 2, 0, 1])
expect('table', table, label)
with open(path('table.csv'), 'w') as f:
    f.write('a,b,label,c\n')
    for row, k in zip(table, label):
        f.write(f'{row[0]!s},{row[1]!s},{k},{row[2]!s}\n')
with open(path('table-de.csv'), 'w', encoding='utf-8-sig', newline='') as f:
    f.write('"a";"b";"class";"c"\r\n')
    for row, k in zip(table, label):
        f.write(f'{row[0]:.9e}; {row[1]:.9e};"{k}.0";{row[2]:.9e}\r\n\r\n')

# IDX: bytes, and big-endian floats, compressed
idx(open(path('idx', 't10k-images-idx3-ubyte'), 'wb'), x)
idx(open(path('idx', 't10k-labels-idx1-ubyte'), 'wb'), y.astype(np.uint8))
with gzip.GzipFile(path('idx', 'train-images-idx2.gz'), 'wb', mtime=0) as f:
    idx(f, table)
with gzip.GzipFile(path('idx', 'train-labels-idx1.gz'), 'wb', mtime=0) as f:
    idx(f, label.astype(np.int16))
expect('idx-bytes', x, y.astype(np.uint8))
expect('idx-floats', table, label.astype(np.int16))

# images: every kind of one size, and another size
size = (9, 6)  # Pillow's: width, height
rgb = Image.fromarray(random.integers(0, 256, (6, 9, 3), dtype=np.uint8))
smooth = Image.fromarray(np.add.outer(np.arange(6) * 20, np.arange(9) * 10).astype(np.uint8))
rgb.save(path('images', 'cat', 'a-rgb.png'))
rgb.quantize(12).save(path('images', 'cat', 'b-palette.png'))
smooth.save(path('images', 'cat', 'c-gray.png'))
smooth.convert('1').save(path('images', 'cat', 'd-bits.png'))
alpha = rgb.copy()
alpha.putalpha(smooth)
alpha.save(path('images', 'dog', 'a-alpha.png'))
rgb.save(path('images', 'dog', 'b-baseline.jpg'), quality=80)
rgb.save(path('images', 'dog', 'c-progressive.JPEG'), quality=80, progressive=True)
smooth.save(path('images', 'dog', 'd-gray.jpg'))


def read(name):
    return np.asarray(Image.open(path(name)).convert('RGB')).transpose(2, 0, 1)


names = sorted(os.path.join('images', c, f) for c in ('cat', 'dog') for f in os.listdir(path('images', c)))
expect('images', np.stack([read(n) for n in names]), np.array([0] * 4 + [1] * 4))
smooth.save(path('sizes', 'one', 'a.png'))
big = Image.fromarray(random.integers(0, 256, (23, 31), dtype=np.uint8))
big.save(path('sizes', 'two', 'a.png'))
expect('sizes', np.stack([np.asarray(i.resize((12, 10), Image.BILINEAR))[None] for i in (smooth, big)]), np.array([0, 1]))
