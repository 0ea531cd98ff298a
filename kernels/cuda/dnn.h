// SPDX-License-Identifier: Apache-2.0
// kernels/cuda/dnn.h - convolutions in the terms of cuDNN's graph API: an operation graph, the
// engines that can run it, and a plan.
//
// Design notes
// An engine is named by its index in the graph and its knobs ("e11:2=0,5=3"; f for a graph with the
// epilogue fused), which is all that is needed to make the same plan again. What is asked is the
// same with a device as without one: a text that describes a device (dnn_device, a JSON of cuDNN's)
// stands in for the handle, and only executing needs the latter. Behind heuristics' lists all
// engines are tried by index with their default knobs.
#ifndef HTH_KERNELS_CUDA_DNN_H
#define HTH_KERNELS_CUDA_DNN_H

#include "device/cuda/driver.h"
#include "kernels/kernel.h"

typedef enum hth_dnn_kind { HTH_DNN_FORWARD, HTH_DNN_DATA, HTH_DNN_FILTER } hth_dnn_kind;

// x [N, C, ..], w [K, C / groups, ..], y [N, K, ..], n_spatial 2 or 3, all dense: row-major, or
// with channels (axis 1) last. In bf16 all but the bias are bf16, and so is the bias; in fp32 and
// tf32 f32.
typedef struct hth_dnn_conv {
    hth_dnn_kind kind;
    int n_spatial;
    int64_t x[5], w[5], y[5];
    int64_t pre[3], post[3], stride[3], dilation[3];
    hth_precision precision;
    bool nhwc;
    bool bias, sum, relu; // forward, in this order; any: the graph is fused
} hth_dnn_conv;

// The tensors' numbers in a plan.
typedef enum hth_dnn_uid {
    HTH_DNN_X = 'x',
    HTH_DNN_W = 'w',
    HTH_DNN_Y = 'y',
    HTH_DNN_BIAS = 'b',
    HTH_DNN_SUM = 's'
} hth_dnn_uid;

// Whom a graph is made for: a handle, or a device's description (finalized), or both NULL.
typedef struct hth_dnn_device {
    const hth_cuda_api *api;
    cudnnHandle_t handle;
    cudnnBackendDescriptor_t description;
} hth_dnn_device;

// hth_dnn_describe makes device->description of a device's JSON; hth_dnn_undescribe ends it.
hth_err hth_dnn_describe(hth_dnn_device *device, const char *json);
void hth_dnn_undescribe(hth_dnn_device *device);

#define HTH_DNN_DESCRIPTORS 24
typedef struct hth_dnn_graph {
    const hth_dnn_device *device;
    int n;
    cudnnBackendDescriptor_t list[HTH_DNN_DESCRIPTORS], graph; // graph: in the list, too
    bool fused;
    hth_precision precision;
} hth_dnn_graph;

// hth_dnn_graph_open makes the graph; hth_dnn_graph_close ends it, also half made.
// HTH_ENOTSUP: with cuDNN's sentence.
hth_err hth_dnn_graph_open(const hth_dnn_device *device, const hth_dnn_conv *conv,
                           hth_dnn_graph *out);
void hth_dnn_graph_close(hth_dnn_graph *graph);

#define HTH_DNN_ENGINES 24 // of a graph, about
typedef struct hth_dnn_engine {
    char name[sizeof((hth_choice *)0)->name];
    int64_t workspace_bytes;
    uint64_t notes; // bit i: cudnnBackendNumericalNote_t i
} hth_dnn_engine;

// hth_dnn_list stores at most `cap` engines that compute in the graph's precision, or in a better
// one, and give the same bits every time, heuristics' first choice first, each name once.
hth_err hth_dnn_list(const hth_dnn_graph *graph, hth_dnn_engine *list, int cap, int *count);
// hth_dnn_first is the part of it that takes a millisecond: heuristics' mode A; where that has
// nothing, or only what wants much workspace, the rest follows, step by step.
hth_err hth_dnn_first(const hth_dnn_graph *graph, hth_dnn_engine *list, int cap, int *count);
// hth_dnn_precise says whether an engine with these notes does.
bool hth_dnn_precise(hth_precision precision, uint64_t notes);

// hth_dnn_plan makes the plan of engine `name`. HTH_ENOTSUP: it is not one of this graph.
hth_err hth_dnn_plan(const hth_dnn_graph *graph, const char *name, cudnnBackendDescriptor_t *out,
                     int64_t *workspace_bytes);
// hth_dnn_plan_kept is the same for a convolution without a graph, from `kept` (NULL: none) where
// it was put by an earlier call, also of another process; `fingerprint`: the device's.
hth_err hth_dnn_plan_kept(const hth_dnn_device *device, const hth_dnn_conv *conv, const char *name,
                          const hth_device_kept *kept, const char *fingerprint,
                          cudnnBackendDescriptor_t *out, int64_t *workspace_bytes);
// hth_dnn_has_kept says whether there is an engine for a convolution; that there is one is kept.
bool hth_dnn_has_kept(const hth_dnn_device *device, const hth_dnn_conv *conv,
                      const hth_device_kept *kept, const char *fingerprint);
// hth_dnn_key writes what it is kept under; false: longer than `cap`.
#define HTH_DNN_KEY 480
bool hth_dnn_key(const char *fingerprint, const hth_dnn_conv *conv, const char *name, char *out,
                 size_t cap);
// hth_dnn_plan_load makes a plan of its text. HTH_ENOTSUP and others: cuDNN refuses it.
hth_err hth_dnn_plan_load(const hth_dnn_device *device, const char *json,
                          cudnnBackendDescriptor_t *out, int64_t *workspace_bytes);
// hth_dnn_plan_json copies a plan's text, from which cuDNN makes it again; free it with hth_free.
hth_err hth_dnn_plan_json(const hth_dnn_device *device, cudnnBackendDescriptor_t plan, char **out);
// hth_dnn_execute issues a plan to the handle's stream.
hth_err hth_dnn_execute(const hth_dnn_device *device, cudnnBackendDescriptor_t plan, int n,
                        const int64_t *uid, void *const *address, void *workspace);

#endif
