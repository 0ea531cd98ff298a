// SPDX-License-Identifier: Apache-2.0
// kernels/kernel.h - a prepared operator: made once per (node, shapes, layouts, algorithm), run
// many times.
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
    hth_err (*pack)(const hth_kernel *k, const struct hth_packing *p, const void *plain, void *dst);
} hth_packing;

typedef struct hth_kernel_args {
    void *const *in;  // one per node input; NULL where absent. Packed constants where the kernel
                      // asked for them
    void *const *out; // one per node output; NULL where absent
    void *workspace;  // k->workspace_bytes, 64-byte aligned; NULL when 0
} hth_kernel_args;

struct hth_kernel {
    hth_err (*run)(const hth_kernel *k, const hth_kernel_args *a);
    void (*close)(hth_kernel *k);
    const char *implementation; // "jit_wino:avx512_core", "ref"; for people
    size_t workspace_bytes;
    int n_packings;
    hth_packing *packings;
    int inplace_input; // input whose buffer output 0 may share, -1: none
};

// hth_kernel_prepare makes the kernel of node `n` of concrete graph `g` on device `d`. `algorithm`
// names one of hth_kernel_algorithms' choices; NULL: the device's default. `g` and `n` must outlive
// the kernel. HTH_ENOTSUP says which property of the node is not supported.
hth_err hth_kernel_prepare(hth_device *d, const hth_graph *g, const hth_node *n,
                           const char *algorithm, hth_kernel **out);
void hth_kernel_close(hth_kernel *k); // NULL is allowed

// hth_kernel_algorithms lists the alternatives of a node with their workspace bytes (time and error
// not yet measured: time_us < 0). Nodes without alternatives give one, named "default". Stores at
// most `cap`.
hth_err hth_kernel_algorithms(hth_device *d, const hth_graph *g, const hth_node *n,
                              hth_choice *list, int cap, int *count);

// hth_kernel_first is the part of that list that a device can tell without searching, its default
// first: what a first program is made from. One of them needs little workspace.
hth_err hth_kernel_first(hth_device *d, const hth_graph *g, const hth_node *n, hth_choice *list,
                         int cap, int *count);

// hth_kernel_oracle tells the graph passes what device `d` can fuse and which layouts it wants.
const hth_fuse_oracle *hth_kernel_oracle(hth_device *d);

// hth_kernel_computes says whether device `d` computes in precision `p`. HTH_ENOTSUP: a sentence.
hth_err hth_kernel_computes(hth_device *d, hth_precision p);

// hth_kernel_half keeps values of a graph whose precision is bf16 in bf16 as far as `d` can.
hth_err hth_kernel_half(hth_device *d, hth_graph *g);

// A device's kernels. The CPU's table is hth_cpu_kernel_ops (kernels/cpu/cpu.h); a device that
// comes with a plug-in (device/plugin.h) brings its own, to which hth_device.kernels points. A
// plug-in is linked with nothing of this program: what it calls of graph/ to read constants comes
// along.
typedef struct hth_kernel_host {
    hth_err (*const_map)(hth_const *c, const void **out);
    void (*const_unmap)(hth_const *c);
} hth_kernel_host;
typedef struct hth_kernel_ops {
    hth_err (*prepare)(const hth_kernel_host *host, hth_device *d, const hth_graph *g,
                       const hth_node *n, const char *algorithm, hth_kernel **out);
    hth_err (*algorithms)(const hth_kernel_host *host, hth_device *d, const hth_graph *g,
                          const hth_node *n, bool first, hth_choice *list, int cap, int *count);
    const hth_fuse_oracle *(*oracle)(hth_device *d);
    hth_err (*computes)(hth_device *d, hth_precision p);
    hth_half_fn half; // which tensors kernels read and write in bf16; ctx: the device; NULL: none
} hth_kernel_ops;

// hth_ref_eval computes a node on plain host tensors with the reference kernels (kernels/ref):
// plain C, every operator, every dtype it needs; post ops included. An hth_eval_fn. HTH_ENOTSUP
// names operator and dtype. NonZero, NonMaxSuppression, Compress: out[0].data == NULL means "only
// set out[0].shape and out[0].bytes"; the caller then calls again with that shape and a buffer of
// that size (graph/specialize.h).
hth_err hth_ref_eval(void *ctx, const hth_graph *g, const hth_node *n, const hth_tensor *in,
                     hth_tensor *out);

#endif
