// SPDX-License-Identifier: Apache-2.0
// kernels/cpu/duration.h - how long an operator computes at least, from its shapes.
//
// Design notes
// A kernel is not interrupted: while it computes, everybody else waits. Most take as long as it
// takes to read and write their tensors, which memory limits. A few multiply sizes: those are
// counted here, in products, at rates that their kernels reach on a good processor. So what is
// expected is less than what is measured, and nothing usual is refused.
#ifndef HTH_KERNELS_CPU_DURATION_H
#define HTH_KERNELS_CPU_DURATION_H

#include "device/device.h"
#include "graph/graph.h"

// hth_cpu_duration_s is how many seconds node `node` of concrete graph `graph` computes at least on
// `threads` threads; 0: not longer than its tensors take to be read and written.
double hth_cpu_duration_s(const hth_graph *graph, const hth_node *node, int threads);
// hth_cpu_duration_check fails where that is more than limits.operator_seconds. HTH_EINVAL names
// node, operator and both durations.
hth_err hth_cpu_duration_check(const hth_device *device, const hth_graph *graph,
                               const hth_node *node);

#endif
