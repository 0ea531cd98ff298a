// SPDX-License-Identifier: Apache-2.0
// convsel/pairs.h - what overlaps with what: operators of two classes at the same time, on one
// thread each, against one after the other on both threads.
//
// Design notes
// The operator execution factor of two works is OEF(i, j) = (Ti + Tj - Pij) / min(Ti, Tj): T is a
// work's time on two threads, P the time until both have ended that began together on one thread
// each. 0: nothing is gained; 1: the shorter one costs nothing. A class is represented by the
// largest operator of the graph that belongs to it, repeated until it takes as long as the longest
// of them: of two unequal works one thread waits in the end, whatever they are. Times are lower
// quartiles of runs in turns, because other programs only ever add to a run.
#ifndef HTH_CONVSEL_PAIRS_H
#define HTH_CONVSEL_PAIRS_H

#include "convsel/convsel.h"

// clang-format off
#define HTH_PAIR_CLASS_TABLE(X)                                                                    \
    X(CONVOLUTION, "convolution")                                                                  \
    X(PRODUCT,     "product")                                                                      \
    X(NORM,        "norm")                                                                         \
    X(ELEMENTWISE, "element-wise")                                                                 \
    X(ATTENTION,   "attention")                                                                    \
    X(COPY,        "copy")          /* 16 MiB to other memory; of every graph */                   \
    X(REDUCTION,   "reduction")     /* 16 MiB added to others; of every graph */
// clang-format on

typedef enum hth_pair_class {
#define HTH_PAIR_CLASS_ID(ID, name) HTH_PAIR_##ID,
    HTH_PAIR_CLASS_TABLE(HTH_PAIR_CLASS_ID)
#undef HTH_PAIR_CLASS_ID
        HTH_PAIR_CLASSES
} hth_pair_class;

typedef struct hth_pairs {
    bool disturbed; // other programs had the processors meanwhile
    bool there[HTH_PAIR_CLASSES];
    int node[HTH_PAIR_CLASSES];                             // of the graph; -1: none
    double alone_us[HTH_PAIR_CLASSES];                      // T
    double together_us[HTH_PAIR_CLASSES][HTH_PAIR_CLASSES]; // P; symmetric
} hth_pairs;

const char *hth_pair_class_name(hth_pair_class which);
// hth_pair_class_of returns an operator's class, HTH_PAIR_CLASSES: it has none.
hth_pair_class hth_pair_class_of(hth_op op);
#define HTH_PAIR_TRIES 5
// hth_pairs_runs stores how often each class's work is run, from the times of single runs: about as
// long as the longest of all, some milliseconds at least. The least of a class's times counts.
void hth_pairs_runs(const bool there[HTH_PAIR_CLASSES], double us[][HTH_PAIR_TRIES],
                    int runs[HTH_PAIR_CLASSES]);
double hth_pairs_oef(const hth_pairs *pairs, hth_pair_class a, hth_pair_class b);
// hth_pairs_measure measures the classes of `graph` on `device`, or reads from `cache` (NULL: there
// is none) what was measured before and not disturbed, unless `again`. Takes some seconds, minutes
// where operators are slow, on the device's owner thread and another; `go_on` (may be NULL) is
// called now and then on the first, and false ends it. HTH_ENOTSUP: not a CPU device with two
// threads or more; HTH_ECANCELED, HTH_ENOMEM.
typedef struct hth_pairs_watch {
    bool (*go_on)(void *ctx);
    void *ctx;
} hth_pairs_watch;
hth_err hth_pairs_measure(hth_device *device, const hth_graph *graph, const hth_timing_cache *cache,
                          bool again, const hth_pairs_watch *watch, hth_pairs *out);

#endif
