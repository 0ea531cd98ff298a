// SPDX-License-Identifier: Apache-2.0
// convsel/convsel.h - candidates of every convolution: measured once, kept on the Pareto front,
// cached.
#ifndef HTH_CONVSEL_CONVSEL_H
#define HTH_CONVSEL_CONVSEL_H

#include "convsel/choice.h"
#include "convsel/cache_model.h"
#include "device/device.h"
#include "graph/graph.h"

#define HTH_MAX_CHOICES 32
#define HTH_CONVSEL_KEY 480 // bytes that every key fits: less than LMDB allows
// What is remembered is text that others may have written; more than these is nothing measured.
#define HTH_CONVSEL_MOST_US    1e12
#define HTH_CONVSEL_MOST_BYTES 1e15 // also in a second
// Largest error of a choice on the front, unless it is set otherwise: what f32 training and
// inference tolerate of Winograd, not of a wrong result.
#define HTH_CONVSEL_TOLERANCE 1e-3

// Where measurements are kept between processes (the model store implements it). Keys and values
// are small texts.
typedef struct hth_timing_cache {
    hth_err (*get)(void *ctx, const char *key, char *value, size_t cap); // HTH_ENOENT: not there
    hth_err (*put)(void *ctx, const char *key, const char *value);
    void *ctx;
    // where a measurement takes its buffers from, aligned to HTH_DEVICE_ALIGN; NULL: host memory
    void *(*take)(void *owner, size_t bytes); // NULL: no room
    void (*give)(void *owner, void *p);
    void *owner;
    // called wherever a measurement can be interrupted, and may compute on the device meanwhile;
    // true: it did; NULL: nothing is called
    bool (*between)(void *owner);
} hth_timing_cache;

// A cached text that is none.
#define HTH_CONVSEL_NOTHING "-"
// How often a node is measured, all in all, before a disturbed measurement is left as it is.
#define HTH_CONVSEL_TRIES 4

// hth_convsel_measure lists the alternatives of node `node`, times each on device `device` (median
// of >= 5 runs after a warm-up, fewer for runs over 20 ms), measures its error against the
// reference on random data (the reference at reduced batch when it would take long), marks the
// front, and remembers the result in `cache` (NULL: nowhere). Fastest first. Of a step's nodes the
// times are corrected by what steps took (in_step_times.h). A measurement that was disturbed is
// marked, in the list and in the cache, and holds until it is taken again; one of a step's node,
// whose algorithms decide of a job's bits and so do not change later, is repeated once at once.
// `heat` describes how the step that node belongs to uses the caches; NULL: time is that of node
// run again and again. Runs on the device's owner thread. HTH_ENOMEM: no room for its buffers.
hth_err hth_convsel_measure(hth_device *device, const hth_graph *graph, const hth_node *node,
                            const hth_cache_model *cache_state, const hth_timing_cache *cache,
                            hth_choice *list, int cap, int *count);
// hth_convsel_scaled lists the alternatives of node without measuring any, by what `cache` has of
// `kin`, the same node of kin_graph, a graph for another number of samples: its times by `scale`,
// its errors, and node's own workspaces. Fastest first; the front is not marked. HTH_ENOENT: kin
// was not measured, node lacks its fastest algorithm, or the device is none of the host's, whose
// kernels have their workspaces when they are prepared.
hth_err hth_convsel_scaled(hth_device *device, const hth_graph *graph, const hth_node *node,
                           const hth_graph *kin_graph, const hth_node *kin,
                           const hth_cache_model *kin_caches, const hth_timing_cache *cache,
                           double scale, hth_choice *list, int cap, int *count);
// hth_convsel_disturbed says whether node's measurement in `cache` was disturbed, or is not
// plausible (three algorithms with one time, or less than the arithmetic can take), and may be
// taken again: HTH_CONVSEL_TRIES are not used up. hth_convsel_again takes it again: what is not
// disturbed replaces it, else each choice keeps the lesser of its times. hth_convsel_forget drops
// all timings of node, also those that were taken within training steps.
bool hth_convsel_disturbed(hth_device *device, const hth_graph *graph, const hth_node *node,
                           const hth_cache_model *cache_state, const hth_timing_cache *cache);
hth_err hth_convsel_again(hth_device *device, const hth_graph *graph, const hth_node *node,
                          const hth_cache_model *cache_state, const hth_timing_cache *cache);
hth_err hth_convsel_forget(hth_device *device, const hth_graph *graph, const hth_node *node,
                           const hth_cache_model *cache_state, const hth_timing_cache *cache);
// hth_convsel_alone is what `cache` (NULL: nothing) has under a key, measured alone and not
// corrected, fastest first; returns how many choices, 0: not measured.
int hth_convsel_alone(const hth_timing_cache *cache, const char *key, hth_choice *list, int cap);
// hth_convsel_has_menu says whether an operator has alternatives: convolutions and their gradients.
// hth_convsel_direction names what such a node computes: "fwd", "bwd_data", "bwd_filter".
bool hth_convsel_has_menu(hth_op op);
// hth_convsel_lists says whether it has on this device: with kernels of its own, products, too.
bool hth_convsel_lists(const hth_device *device, hth_op op);
const char *hth_convsel_direction(hth_op op);
// hth_convsel_known says whether `cache` has node's measurement.
bool hth_convsel_known(hth_device *device, const hth_graph *graph, const hth_node *node,
                       const hth_cache_model *cache_state, const hth_timing_cache *cache);
// hth_convsel_key writes the cache key: device fingerprint, library version and descriptor (op,
// shapes, attributes, post ops, layouts), and the step's caches.
void hth_convsel_key(hth_device *device, const hth_graph *graph, const hth_node *node,
                     const hth_cache_model *cache_state, char *out, size_t cap);
// hth_convsel_describe writes the descriptor alone, the same on every device.
void hth_convsel_describe(const hth_graph *graph, const hth_node *node, char *out, size_t cap);
// hth_convsel_tolerance is the largest error that a choice of this graph may have: `setting`, or
// what a graph's precision makes of a right result, where that is more.
double hth_convsel_tolerance(const hth_graph *graph, double setting);
// hth_convsel_front marks, in a list sorted by time, the choices that no other beats in time,
// workspace and (an eighth of them at least) resident bytes among those with error <= tolerance.
void hth_convsel_front(hth_choice *list, int n, double tolerance);

#endif
