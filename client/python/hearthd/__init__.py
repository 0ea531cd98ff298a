# SPDX-License-Identifier: Apache-2.0
"""hearth from Python: numpy arrays in and out, over a local socket, over the network, or in this process.

    import hearthd

    with hearthd.Client('ipc:///run/hearth.sock') as h:      # or a directory: an engine in this process
        logits = h.infer('digits', {'image': images})['logits']

Outputs are views of the answer's memory, and arrays from `Client.buffer` are passed to a local server without being copied.
Everything that hearth refuses is raised as a `hearthd.Error`, with hearth's own sentence.
"""
from ._client import Client, Exported, Imported
from ._errors import (Busy, Canceled, Corrupt, Denied, DeviceLost, Error, Exists, InvalidArgument, LibraryNotFound, NotFound,
                      NotSupported, OutOfDeviceMemory, OutOfMemory, SystemFailure, TimedOut, TooBig)
from .exchange import Exchange
from ._jobs import Job, JobStatus, Step, Trained
from ._library import version as _version

__version__ = _version()
__all__ = ['Busy', 'Canceled', 'Client', 'Corrupt', 'Denied', 'DeviceLost', 'Error', 'Exchange', 'Exists', 'Exported', 'Imported', 'InvalidArgument', 'Job',
           'JobStatus', 'LibraryNotFound', 'NotFound', 'NotSupported', 'OutOfDeviceMemory', 'OutOfMemory', 'Step', 'SystemFailure', 'TimedOut',
           'TooBig', 'Trained']
