// SPDX-License-Identifier: Apache-2.0
// engine/serve/serve_impl.h - what the parts of serving (serve*.c) have of each other: runs, the
// programs that the batcher asks about and wishes for, and what is done aside.
#ifndef HTH_ENGINE_SERVE_SERVE_IMPL_H
#define HTH_ENGINE_SERVE_SERVE_IMPL_H

#include "engine/serve/serve.h"

// hth_serve_oracle opens s's batcher, with answers from the programs of its models.
void hth_serve_oracle(hth_serve *s);
// hth_serve_grant makes the program that m's requests wish for; one that cannot be had, or that
// would drive others out of the device's memory, is not asked for again for a while.
void hth_serve_grant(hth_serve *s, hth_model *m);

// hth_serve_batch does one run, for a request of *priority; false: there is none before *wake_ns.
bool hth_serve_batch(hth_serve *s, hth_batch_ask ask, uint64_t *wake_ns, uint32_t *priority);

// hth_serve_begins begins something that nobody waits for; false: later, and until then promises
// leave room for it. hth_serve_ends counts the last piece of it.
bool hth_serve_begins(hth_serve *s);
void hth_serve_ends(hth_serve *s);
// hth_serve_measure takes a step towards measured algorithms while nobody asks. false: there was
// nothing to measure, or somebody has asked meanwhile.
bool hth_serve_measure(hth_serve *s);
// hth_serve_in_measure is the site's in_measure, for a serve: it has requests served behind a piece
// for as long as makes up for it. true: something was run.
bool hth_serve_in_measure(void *ctx);
// hth_serve_in_compile is its in_compile: behind some pieces it has a run done.
void hth_serve_in_compile(void *ctx);

#endif
