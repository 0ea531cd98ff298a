// SPDX-License-Identifier: Apache-2.0
// runtime/overhead.h - host memory that programs take for their operators, besides weights and
// arenas. Engine's thread only.
//
// Design notes
// An operator that is no more than twenty bytes of a file is some kilobytes of graph, plan and
// kernel in each of a model's programs. That is in no ledger, so its sum has a limit in proportion
// to the device: programs that were not used for the longest time go, and are made again when they
// are asked for.
#ifndef HTH_RUNTIME_OVERHEAD_H
#define HTH_RUNTIME_OVERHEAD_H

#include "runtime/site.h"

// hth_overhead_bytes is about what a program of concrete graph `graph` takes.
uint64_t hth_overhead_bytes(const hth_graph *graph);
// hth_overhead_room makes room for that of program->graph, and notes it in program, which is in no
// list yet. HTH_ETOOBIG: more than there may ever be, with both numbers.
hth_err hth_overhead_room(hth_site *site, hth_program *program);

#endif
