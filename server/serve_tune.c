// SPDX-License-Identifier: Apache-2.0
// Measured algorithms while requests keep coming: in slices, one choice's few runs each, and
// requests behind each of them for as long as makes up for it.
#include "server/serve_parts.h"

#include "base/clock.h"
#include "server/infer.h"

// Measuring's part of the time while requests come, as what others have for each of its own; and
// how often it is looked for something to measure where there was nothing.
#define TUNE_OTHERS  19
#define TUNE_LOOK_NS 1000000000u
#define TUNE_WAIT_NS 5000000u

// tune_hurries says that something waits that a measurement holds up: then it is brought to its
// end.
static bool tune_hurries(const hth_serve *s)
{
    return s->first != NULL || s->wished != NULL || s->await.n > 0;
}

void hth_serve_in_measure(void *ctx)
{
    hth_serve *s = ctx;
    if (!s->tuning || s->nested) {
        return;
    }
    uint64_t now_ns = hth_now_ns(), until_ns = now_ns + (now_ns - s->slice_ns) * TUNE_OTHERS;
    uint64_t wake_ns;
    uint32_t priority;
    bool more = true;
    s->nested = true;
    while (more && hth_now_ns() < until_ns) {
        hth_serve_look(s);
        more = s->batcher.n > 0 ? hth_serve_batch(s, (hth_batch_ask){.hurry = true, .ready = true},
                                                  &wake_ns, &priority)
                                : tune_hurries(s) || s->wait(s->ctx, TUNE_WAIT_NS);
        more = more && !tune_hurries(s);
    }
    s->nested = false;
    s->slice_ns = hth_now_ns();
}

void hth_serve_tune(hth_serve *s)
{
    uint64_t now_ns = hth_now_ns();
    if (now_ns < s->tune_ns || tune_hurries(s)) {
        return;
    }
    s->tuning = true;
    s->slice_ns = now_ns;
    bool some = hth_infer_tune_idle(s->ms);
    s->tuning = false;
    now_ns = hth_now_ns();
    s->tune_ns = now_ns + (some ? (now_ns - s->slice_ns) * TUNE_OTHERS : TUNE_LOOK_NS);
}
