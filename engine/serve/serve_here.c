// SPDX-License-Identifier: Apache-2.0
// Small requests on the thread that asks. Handing a request to the engine's thread and its answer
// back takes two wakes of a sleeping thread: tens of microseconds, and the model may take ten.
#include "engine/serve/serve_impl.h"

#include "base/clock.h"
#include "engine/serve/infer.h"

// Where a program was timed so many times, and takes no longer than this: others wait meanwhile,
// and of a longer one the handing over is a small part.
#define HERE_RUNS    3
#define HERE_MOST_NS 500000u
// What handing over costs at least, by which a caller alone may be slower than all threads.
#define HERE_HAND_NS 10000u
// Every so many requests the slower way is taken, so that what was measured stays recent.
#define HERE_OTHER 256

// here_pays tells whether the request that waits is to be run here: its program is there, and small
// enough; on a device of several threads there is one for a caller alone, and that is no slower.
static bool here_pays(hth_serve *serve, hth_infer_request *infer)
{
    hth_site *site = serve->ms->site;
    hth_program *p = hth_infer_ready(serve->ms, &infer->model->source, infer->inputs);
    if (p == NULL || !p->active || p->stale || p->rest.graph != NULL || p->slice > 0 ||
        p->n_timed < HERE_RUNS || p->run_ns > HERE_MOST_NS) {
        return false;
    }
    if (site->device->props.n_threads == 1) {
        return true;
    }
    if (p->narrow == NULL) {
        if (!p->no_instances) {
            hth_instances_demand(&serve->instances, infer, true);
        }
        return false;
    }
    bool better = p->narrow->run_ns == 0 || p->narrow->run_ns < p->run_ns + HERE_HAND_NS;
    bool other = ++p->narrow->chances % HERE_OTHER == 0;
    return better != other && hth_program_activate(site, p->narrow) == HTH_OK;
}

bool hth_serve_here(hth_serve *serve, hth_request *request, bool *left)
{
    hth_models *ms = serve->ms;
    *left = false;
    hth_model *m = hth_model_current(ms, request->model);
    if (m == NULL || !hth_serve_rests(serve) || serve->memory_wait.n > 0) {
        return false;
    }
    uint64_t wake_ns;
    uint32_t priority;
    atomic_fetch_add(&serve->waiting, 1);
    serve->requested_ns = request->submitted_ns;
    hth_infer_request *w = hth_serve_admit(serve, request, m); // NULL: it is answered
    if (w != NULL && here_pays(serve, w)) {
        ms->site->later = request->later;
        (void)hth_serve_batch(serve, (hth_batch_filter){.ready = true}, &wake_ns, &priority);
        ms->site->later = NULL;
        serve->requested_ns = serve->overlap.requested_ns = hth_now_ns();
    }
    *left = !hth_serve_empty(serve) || serve->pick.n > 0 || serve->memory_wait.n > 0;
    return true;
}
