// SPDX-License-Identifier: Apache-2.0
// device/cuda/fake/impl.h - what the files of the fake driver share.
#ifndef HTH_DEVICE_CUDA_FAKE_IMPL_H
#define HTH_DEVICE_CUDA_FAKE_IMPL_H

#include "device/cuda/fake/fake.h"

// FAKE_ENTER begins a call that changes nothing when it is told to fail.
#define FAKE_ENTER()                                                                               \
    do {                                                                                           \
        CUresult entered_ = hth_cuda_fake_enter();                                                 \
        if (entered_ != CUDA_SUCCESS) {                                                            \
            return entered_;                                                                       \
        }                                                                                          \
    } while (0)

// FAKE_UNSAFE begins a call that may not be made while a stream is captured.
#define FAKE_UNSAFE()                                                                              \
    do {                                                                                           \
        if (hth_cuda_fake_capture_spoil()) {                                                       \
            return CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED;                                          \
        }                                                                                          \
    } while (0)

// FAKE_CURRENT begins a call that wants a context to be current.
#define FAKE_CURRENT()                                                                             \
    do {                                                                                           \
        if (hth_cuda_fake_current() == NULL) {                                                     \
            return CUDA_ERROR_INVALID_CONTEXT;                                                     \
        }                                                                                          \
    } while (0)
// FAKE_HERE begins a call that wants the stream's context to be current.
#define FAKE_HERE(s)                                                                               \
    do {                                                                                           \
        if (!hth_cuda_fake_here(s)) {                                                              \
            return CUDA_ERROR_INVALID_CONTEXT;                                                     \
        }                                                                                          \
    } while (0)

// hth_cuda_fake_current is this thread's current context. hth_cuda_fake_here: it is that of a
// stream (of the default stream's: any).
CUcontext hth_cuda_fake_current(void);
bool hth_cuda_fake_here(CUstream stream);

// hth_cuda_fake_enter counts a call; what it returns, unless CUDA_SUCCESS, is the call's answer.
CUresult hth_cuda_fake_enter(void);
hth_cuda_fake *hth_cuda_fake_state(void);
// hth_cuda_fake_take takes device memory off the capacity, or returns false; negative gives back.
bool hth_cuda_fake_take(int64_t bytes);
bool hth_cuda_fake_pinned(const void *p);
void hth_cuda_fake_fill_mem(hth_cuda_api *api); // memory's entries of the table

// Streams, events, copies and launches. drain runs everything that was issued and returns whether a
// kernel failed.
bool hth_cuda_fake_streams_open(uint64_t seed);
void hth_cuda_fake_streams_close(void);
bool hth_cuda_fake_drain(void);
void hth_cuda_fake_fill_streams(hth_cuda_api *api);

// Kernels: images, what is in them, and running a grid.
void hth_cuda_fake_kernels_open(uint64_t seed);
void hth_cuda_fake_fill_kernels(hth_cuda_api *api);

// Events and what streams are known by.
#define FAKE_STREAMS 64
typedef struct fake_event {
    hth_event *event;
    unsigned capture; // in which it was recorded last; 0: in none
    int node;
} fake_event;
int hth_cuda_fake_slot(CUstream stream); // -1: no such stream
CUresult hth_cuda_fake_run(CUstream stream, hth_err (*fn)(void *job), const void *job,
                           size_t bytes);

// Captures (graph.c). spoil: a call came that ends the capture under way; whether there is one.
// add makes a node after what `s` has captured; wait and record are the events' share of it, and
// are called for any stream: *taken says whether the capture took it.
void hth_cuda_fake_captures_open(uint64_t seed);
bool hth_cuda_fake_capture_spoil(void);
bool hth_cuda_fake_capturing(CUstream stream);
CUresult hth_cuda_fake_capture_add(CUstream stream, hth_err (*fn)(void *job), const void *job,
                                   size_t bytes);
CUresult hth_cuda_fake_capture_wait(CUstream stream, const fake_event *event, bool *taken);
CUresult hth_cuda_fake_capture_record(CUstream stream, fake_event *event, bool *taken);
void hth_cuda_fake_fill_graphs(hth_cuda_api *api);

#endif
