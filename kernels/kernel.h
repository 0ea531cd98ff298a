// SPDX-License-Identifier: Apache-2.0
// kernels/kernel.h - a prepared operator: made once per (node, shapes, layouts, algorithm), run
// many times.
//
// The folder kernels/ has this interface; each folder in it implements it once: ref/ in plain C,
// which the others are compared with, cpu/ (with dnnl/), cuda/.
//
// Design notes
// Preparing may allocate, create primitives and search; running allocates nothing, decides nothing,
// and may be repeated from the device's owner thread. Constants are *packed*: the kernel says in
// what form it wants a constant input (blocked filter, transposed matrix); the caller keeps that
// form in device memory, keyed by (content id, form), and shares it among all kernels that ask for
// the same.
#ifndef HTH_KERNELS_KERNEL_H
#define HTH_KERNELS_KERNEL_H

#include "convsel/choice.h"
#include "device/device.h"
#include "graph/graph.h"
#include "graph/passes/pass.h"

typedef struct hth_kernel hth_kernel;

// The form in which a kernel wants constant input `input` (position in node->inputs).
typedef struct hth_packing {
    int input;
    size_t bytes;
    char form[96]; // equal text = equal bytes for equal content; "plain" = as stored
    // pack writes `bytes` bytes to dst from the row-major content. Called on the owner's thread.
    // NULL for "plain".
    hth_err (*pack)(const hth_kernel *kernel, const struct hth_packing *p, const void *plain,
                    void *dst);
} hth_packing;

// What a kernel asks for in its middle when its batch is a shard of a larger one: the sums of a few
// numbers over all shards.
typedef struct hth_kernel_group {
    // sum puts in the place of n values their sums, the same bits for every shard, and waits for
    // the others. `share` is the node's attribute of that name; of a kernel that is run again it
    // gives the same sums again. On error the kernel ends with it.
    hth_err (*sum)(void *ctx, int share, double *values, size_t n);
    void *ctx;
    double weight; // of this shard's mean gradients in the whole batch's; > 0
} hth_kernel_group;

typedef struct hth_kernel_args {
    void *const *in;  // one per node input; NULL where absent. Packed constants where the kernel
                      // asked for them
    void *const *out; // one per node output; NULL where absent
    void *workspace;  // k->workspace_bytes, 64-byte aligned; NULL when 0
    const hth_kernel_group *group; // for nodes with a `share`; NULL: the batch is all there is
} hth_kernel_args;

struct hth_kernel {
    hth_err (*run)(const hth_kernel *kernel, const hth_kernel_args *args);
    void (*close)(hth_kernel *kernel);
    const char *implementation; // "jit_wino:avx512_core", "ref"; for people
    size_t workspace_bytes;
    int n_packings;
    hth_packing *packings;
    int inplace_input; // input whose buffer output 0 may share, -1: none
};

// hth_kernel_prepare makes the kernel of node `node` of concrete graph `graph` on device `device`.
// `algorithm` names one of hth_kernel_algorithms' choices; NULL: the device's default. `graph` and
// `node` must outlive the kernel. HTH_ENOTSUP says which property of the node is not supported.
hth_err hth_kernel_prepare(hth_device *device, const hth_graph *graph, const hth_node *node,
                           const char *algorithm, hth_kernel **out);
void hth_kernel_close(hth_kernel *kernel); // NULL is allowed

// hth_kernel_algorithms lists the alternatives of a node with their workspace bytes (time and error
// not yet measured: time_us < 0). Nodes without alternatives give one, named "default". Stores at
// most `cap`.
hth_err hth_kernel_algorithms(hth_device *device, const hth_graph *graph, const hth_node *node,
                              hth_choice *list, int cap, int *count);

// hth_kernel_first is the part of that list that a device can tell without searching, its default
// first: what a first program is made from. One of them needs little workspace.
hth_err hth_kernel_first(hth_device *device, const hth_graph *graph, const hth_node *node,
                         hth_choice *list, int cap, int *count);

// hth_kernel_oracle tells the graph passes what device `device` can fuse and which layouts it
// wants.
const hth_fuse_oracle *hth_kernel_oracle(hth_device *device);

// hth_kernel_computes says whether device `device` computes in precision `precision`. HTH_ENOTSUP:
// a sentence.
hth_err hth_kernel_computes(hth_device *device, hth_precision precision);

// hth_kernel_half keeps values of a graph whose precision is bf16 in bf16 as far as `device` can.
hth_err hth_kernel_half(hth_device *device, hth_graph *graph);

// hth_kernel_kmeans returns what `device` computes K-means with (kernels/kmeans.h); NULL: nothing.
const struct hth_kmeans_ops *hth_kernel_kmeans(const hth_device *device);

// A device's kernels. The CPU's table is hth_cpu_kernel_ops (kernels/cpu/cpu.h); a device that
// comes with a plug-in (device/plugin.h) brings its own, to which hth_device.kernels points. A
// plug-in is linked with nothing of this program: what it calls of graph/ to read constants comes
// along.
typedef struct hth_kernel_host {
    hth_err (*const_map)(hth_const *constant, const void **out);
    void (*const_unmap)(hth_const *constant);
} hth_kernel_host;
typedef struct hth_kernel_ops {
    hth_err (*prepare)(const hth_kernel_host *host, hth_device *device, const hth_graph *graph,
                       const hth_node *node, const char *algorithm, hth_kernel **out);
    hth_err (*algorithms)(const hth_kernel_host *host, hth_device *device, const hth_graph *graph,
                          const hth_node *node, bool first, hth_choice *list, int cap, int *count);
    const hth_fuse_oracle *(*oracle)(hth_device *device);
    hth_err (*computes)(hth_device *device, hth_precision precision);
    hth_half_fn half; // which tensors kernels read and write in bf16; ctx: the device; NULL: none
    const struct hth_kmeans_ops *kmeans; // NULL: none
} hth_kernel_ops;

// hth_ref_eval computes a node on plain host tensors with the reference kernels (kernels/ref):
// plain C, every operator, every dtype it needs; post ops included. An hth_eval_fn. HTH_ENOTSUP
// names operator and dtype. NonZero, NonMaxSuppression, Compress: out[0].data == NULL means "only
// set out[0].shape and out[0].bytes"; the caller then calls again with that shape and a buffer of
// that size (graph/specialize.h).
hth_err hth_ref_eval(void *ctx, const hth_graph *graph, const hth_node *node, const hth_tensor *in,
                     hth_tensor *out);

#endif
