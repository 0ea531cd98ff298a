// SPDX-License-Identifier: Apache-2.0
// device/device.h - one device: memory, copies, streams, events behind one table; implemented by
// cpu/, fake/, cuda/.
//
// Design notes
// A device is driven by one owner thread; streams run alongside. A stream is a FIFO of launches,
// copies, event records and event waits. On the CPU the compute stream runs launches on the owner's
// thread at once (the thread team belongs to it), and each copy direction has a thread of its own;
// on the fake device everything is deferred and executed in a random legal order; on CUDA a stream
// is a CUstream, and a launch runs at once on the owner's thread to issue kernels to it. A plan
// that is right under the fake device has all its event edges.
#ifndef HTH_DEVICE_DEVICE_H
#define HTH_DEVICE_DEVICE_H

#include "base/err.h"

#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define HTH_DEVICE_ALIGN 64u // every buffer offset; a cache line, and what oneDNN's kernels want

typedef struct hth_device hth_device;
typedef struct hth_stream hth_stream;
typedef struct hth_event hth_event;
typedef struct hth_capture hth_capture;
struct hth_kernel_ops; // kernels/kernel.h

typedef enum hth_stream_kind { HTH_STREAM_COMPUTE, HTH_STREAM_H2D, HTH_STREAM_D2H } hth_stream_kind;

typedef struct hth_device_props {
    char name[32];         // "cpu:0", "fake:0", "cuda:0"
    char description[128]; // "AMD EPYC, AVX-512, 2 threads"
    char fingerprint[160]; // changes when timings would: processor, ISA, threads, library versions
    char uuid[48];         // of a GPU, "GPU-" and 32 digits with dashes; "": it has none
    uint64_t total_bytes;  // what the machine has
    uint64_t budget_bytes; // what hearth may take
    int n_threads;         // compute threads (cpu), SMs (cuda)
    // caches: what a core has for itself, what all cores share; 0: unknown
    uint64_t core_cache_bytes, cache_bytes;
    int vector_bytes;    // 64: AVX-512, 32: AVX2, 16: SSE2
    bool host_visible;   // kernels can read and write host memory in place: inputs and outputs need
                         // no copy
    bool inline_compute; // a launch on a compute stream runs at once on the caller: calling the
                         // kernel is the same
    bool inline_copies;  // .. and so does a copy, by all its threads; none is left that a stream of
                         // copies would not take from them
    // of a link whose rates were set (cpu:link=..): copies keep them, next to compute; 0: copies
    // are as fast as they can be
    double h2d_bytes_per_s, d2h_bytes_per_s, link_latency_us;
} hth_device_props;

// What an implementation provides. Open streams and events belong to the device and are closed
// before it.
typedef struct hth_device_ops {
    void (*close)(hth_device *device);
    hth_err (*reserve)(hth_device *device, size_t bytes, void **base);
    void (*release)(hth_device *device, void *base, size_t bytes);
    // (optional) the device's memory, whoever uses it
    hth_err (*memory)(hth_device *device, uint64_t *total, uint64_t *free);
    // (optional) both or neither; without: ordinary memory
    hth_err (*reserve_host)(hth_device *device, size_t bytes, void **base);
    void (*release_host)(hth_device *device, void *base);
    hth_err (*stream_open)(hth_device *device, hth_stream_kind kind, hth_stream **out);
    void (*stream_close)(hth_stream *stream);
    hth_err (*launch)(hth_stream *stream, hth_err (*fn)(void *arg), void *arg);
    hth_err (*copy)(hth_stream *stream, void *dst, const void *src, size_t bytes);
    // (optional) fills device memory with zeros; without: by copies
    hth_err (*zero)(hth_stream *stream, void *dst, size_t bytes);
    hth_err (*record)(hth_stream *stream, hth_event *event);
    hth_err (*wait)(hth_stream *stream, hth_event *event);
    hth_err (*sync)(hth_stream *stream);
    hth_err (*event_open)(hth_device *device, hth_event **out);
    void (*event_close)(hth_event *event);
    hth_err (*event_sync)(hth_event *event);
    uint64_t (*event_time_ns)(hth_event *event);
    // (optional) all or none
    hth_err (*capture_begin)(hth_stream *stream);
    hth_err (*capture_end)(hth_stream *stream, hth_capture **io);
    hth_err (*capture_launch)(hth_capture *capture, hth_stream *stream);
    void (*capture_close)(hth_capture *capture);
} hth_device_ops;

// Texts that outlive the process, of what a device's kernels had their libraries make.
typedef struct hth_device_kept {
    hth_err (*get)(void *ctx, const char *key, char *value, size_t cap); // HTH_ENOENT: not there
    hth_err (*put)(void *ctx, const char *key, const char *value);
    void *ctx;
} hth_device_kept;

struct hth_device {
    const hth_device_ops *ops;
    hth_device_props props;
    const struct hth_kernel_ops *kernels; // of a device that brings its own, NULL: kernels/cpu's
    const hth_device_kept *kept;          // set by who opened it; NULL: nothing is kept
    bool plain;                           // captures are not wanted
    atomic_int quota_percent;             // hth_device_quota; 0: nobody set it, as 100
    hth_stream *up, *down;                // of put and get, opened when they are first needed
    // of the host, for what leaves the device: what there is for it (the machine's memory, less
    // this device's own where that is the same), and what is taken
    uint64_t host_limit_bytes, host_taken_bytes;
};
struct hth_stream {
    hth_device *device;
    hth_stream_kind kind;
};
struct hth_event {
    hth_device *device;
};
struct hth_capture {
    hth_device *device;
};

// hth_device_open opens a device by its specification: "cpu", "cpu:mem=2GiB,threads=2",
// "cpu:mem=60%", "cpu:isa=avx2" (these instructions only), "cpu:quota=50%" (of its processors'
// time), "cpu:link=1.5GB/s" or "cpu:h2d=2GB/s,d2h=1GB/s" (its copies' rates),
// "fake:mem=1MiB,seed=7", "cuda:0,mem=80%", "cuda:0,graphs=off". On error *out is NULL.
// HTH_EINVAL: unknown kind or option, says which are known; HTH_ENOTSUP: no such device here, or no
// such instructions; HTH_EBUSY: an open device of this process has others (cpu/isa_claim.h).
// There are as many cpu devices as are opened ("cpu:1,mem=1GiB,threads=1"): each has memory and
// threads of its own.
hth_err hth_device_open(const char *spec, hth_device **out);
// hth_device_name writes the name of the device that a specification is about: "cuda:0".
hth_err hth_device_name(const char *spec, char *out, size_t cap);
void hth_device_close(
    hth_device *device); // NULL is allowed; everything opened on it must be closed

// hth_device_paced: the device's link has a set rate, which all copies keep.
static inline bool hth_device_paced(const hth_device *device)
{
    return device->props.h2d_bytes_per_s > 0;
}

// hth_device_quota sets the percentage of its processors' time that a CPU device uses from now on,
// 1 to 100. HTH_ENOTSUP: not a CPU device. Any thread.
hth_err hth_device_quota(hth_device *device, int percent);
int hth_device_quota_percent(const hth_device *device); // 100: no quota
// hth_device_pause has the calling thread, which computes for the device, pause for a few
// milliseconds at most if its quota wants that (quota.h). Called between kernels, where time is not
// measured; true: it is to be called again before the next one.
bool hth_device_pause(const hth_device *device);

// hth_device_memory stores how much memory a device has by itself, and what of it nobody uses,
// other processes included. HTH_ENOTSUP: it has none that is its own, or does not say.
hth_err hth_device_memory(hth_device *device, uint64_t *total, uint64_t *free);

// hth_device_reserve takes `bytes` of device memory, HTH_DEVICE_ALIGN-aligned. HTH_ETOOBIG: more
// than the budget; HTH_ENODEVMEM: not now. The caller releases it.
hth_err hth_device_reserve(hth_device *device, size_t bytes, void **base);
void hth_device_release(hth_device *device, void *base,
                        size_t bytes); // nothing issued still uses it
// hth_device_reserve_host takes host memory that copies to and from the device are fastest with:
// pinned on CUDA. HTH_ENOMEM, also where the machine has less than all of it together. Released
// before the device is closed, when nothing issued still uses it; NULL is allowed.
hth_err hth_device_reserve_host(hth_device *device, size_t bytes, void **base);
void hth_device_release_host(hth_device *device, void *base, size_t bytes);

// hth_device_put copies host memory to the device's, get the other way, and zero fills it with
// zeros. They return when it is done; nothing issued uses that memory meanwhile. Host memory counts
// in the thread's account (base/pace.h), whose error ends them half done.
hth_err hth_device_put(hth_device *device, void *far, const void *host, size_t bytes);
hth_err hth_device_get(hth_device *device, void *host, const void *far, size_t bytes);
hth_err hth_device_zero(hth_device *device, void *far, size_t bytes);

hth_err hth_stream_open(hth_device *device, hth_stream_kind kind, hth_stream **out);
void hth_stream_close(hth_stream *stream); // waits for what was issued; NULL is allowed
// hth_stream_launch runs fn(arg), or on CUDA what fn(arg) issues, in the stream's order. fn's
// failure is kept and returned by the next hth_stream_sync; after it the stream's later launches
// and copies are skipped until that sync.
hth_err hth_stream_launch(hth_stream *stream, hth_err (*fn)(void *arg), void *arg);
// hth_stream_copy copies between host and device memory (the stream's kind says which way); both
// stay valid until done.
hth_err hth_stream_copy(hth_stream *stream, void *dst, const void *src, size_t bytes);
// e is done when everything issued before is
hth_err hth_stream_record(hth_stream *stream, hth_event *event);
// what is issued afterwards waits for event's last record
hth_err hth_stream_wait(hth_stream *stream, hth_event *event);
hth_err hth_stream_sync(hth_stream *stream); // blocks the caller until the stream is empty
hth_err hth_event_open(hth_device *device, hth_event **out);
// after the streams that record it or wait for it were drained; NULL is allowed
void hth_event_close(hth_event *event);
hth_err hth_event_sync(hth_event *event);
// when the last record was reached (hth_now_ns's clock); 0: not yet
uint64_t hth_event_time_ns(hth_event *event);

// Captures: work that is issued once, recorded with its order, and launched as a whole as often as
// wanted, with the addresses that it was recorded with. Only where hth_device_captures says so.
bool hth_device_captures(const hth_device *device);
// hth_capture_begin has everything that is issued to `stream` from now on recorded and not run, and
// so for streams that wait for an event recorded there meanwhile; these must be waited for in turn
// before the end. Until then nothing may be synchronized, reserved or released on the device. One
// at a time.
hth_err hth_capture_begin(hth_stream *stream);
// hth_capture_end ends it. *io NULL: becomes a new capture, which the caller closes; else what it
// holds is replaced. `io` NULL: what was recorded is dropped. HTH_ENOTSUP: something was issued
// that cannot be recorded, a copy from memory that is not pinned say; any failure: *io is NULL, its
// old capture closed.
hth_err hth_capture_end(hth_stream *stream, hth_capture **io);
// hth_capture_launch runs what was recorded, in the stream's order.
hth_err hth_capture_launch(hth_capture *capture, hth_stream *stream);
void hth_capture_close(hth_capture *capture); // after its launches were drained; NULL is allowed

#endif
