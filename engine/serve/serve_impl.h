// SPDX-License-Identifier: Apache-2.0
// engine/serve/serve_impl.h - what the parts of serving (serve*.c) have of each other: runs, the
// programs that the batcher asks about and demands, and who computes next.
#ifndef HTH_ENGINE_SERVE_SERVE_IMPL_H
#define HTH_ENGINE_SERVE_SERVE_IMPL_H

#include "engine/serve/serve.h"

// hth_serve_oracle opens serve's batcher, with answers from the programs of its models.
void hth_serve_oracle(hth_serve *serve);
// hth_serve_compile compiles the program that model's requests demand; one that fails, or that
// would drive others out of the device's memory, is not demanded again for a while.
void hth_serve_compile(hth_serve *serve, hth_model *model);

// hth_serve_batch picks a run and does it, for a request of *priority; one whose program would have
// to be compiled first is left in serve->pick, where the caller is on the loop's own stack. false:
// there is none before *wake_ns.
bool hth_serve_batch(hth_serve *serve, hth_batch_filter filter, uint64_t *wake_ns,
                     uint32_t *priority);
// hth_serve_admit queues an inference of a model that is loaded; NULL: it was refused, and
// answered.
hth_infer_request *hth_serve_admit(hth_serve *serve, hth_request *request, hth_model *model);
// hth_serve_picked runs what was left in serve->pick.
void hth_serve_picked(hth_serve *serve);
// hth_serve_before does as many runs as there are requests now.
void hth_serve_before(hth_serve *serve);
// hth_serve_accept takes the first request that arrived and answers it, or queues it; inferences
// only, or queries, too. false: there is none.
bool hth_serve_accept(hth_serve *serve, bool queries);
// hth_serve_requeue queues what waited for memory, where there may be some now; false: nothing.
bool hth_serve_requeue(hth_serve *serve);
// hth_serve_empty says that nothing waits that could be run.
bool hth_serve_empty(const hth_serve *serve);
// hth_serve_rests says so, too, and that what is in progress is between two slices.
bool hth_serve_rests(const hth_serve *serve);

// hth_serve_loop_init makes the device's run queue, and gives it to the site.
void hth_serve_loop_init(hth_serve *serve);

#endif
