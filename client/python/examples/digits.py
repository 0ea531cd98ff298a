# SPDX-License-Identifier: Apache-2.0
# %% [markdown]
# Handwritten digits: train under half of the memory that it takes, look at the curve, classify. Cells are set off by `# %%`, for
# editors that show them as a notebook; as a script: `python3 client/python/examples/digits.py [URL or directory of a store]`.

# %% A server, or an engine in this process.
import sys
import tempfile
from pathlib import Path

import numpy as np

import hearthd

data = Path(__file__).resolve().parents[3] / 'tests' / 'data' / 'digits'
scratch = tempfile.TemporaryDirectory()
h = hearthd.Client(sys.argv[1] if len(sys.argv) > 1 else Path(scratch.name) / 'store')
print(h.import_model('new', data / 'untrained.onnx'))

# %% What a training step costs under each budget, before anything runs.
for point in h.curve('new', batch=64, plan_ms=20):
    print(f"{point['budget_bytes'] / 1024:8.0f} KiB  {point['time_ms']:.3f} ms")

# %% Train; the losses are the same under any budget that leaves the algorithms the same.
job = h.train('new', data / 'train.safetensors', loss='softmax-xent', optimizer='adam', lr=0.002, batch=64, epochs=12,
              budget='50%', save_as='trained', hold_out=0.1, wait=False)
for step in job.follow():
    if step.step % 50 == 1:
        print(f'step {step.step:4d}  loss {step.loss:.4f}')
trained = job.result()
print(f"trained:{trained.version}  held out: {trained.held_out[-1]['accuracy']:.3f}")

# %% Classify images that it has never seen, from memory that a server on this machine maps.
images, labels = np.load(data / 'images.npy'), np.load(data / 'labels.npy')
shared = h.buffer(images.shape, images.dtype)
shared[...] = images
right = (h.infer('trained', {'image': shared})['logits'].argmax(1) == labels).mean()
print(f'accuracy {right:.3f}')
assert right > 0.9

# %% The ledger of bytes, and the end.
print(h.stats()['residency'])
h.close()
scratch.cleanup()
