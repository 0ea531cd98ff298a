// SPDX-License-Identifier: Apache-2.0
#include "runtime/paced.h"

#include "base/thread.h"

#include <stdio.h>
#include <unistd.h>

#define SEARCH_LOOK_US 200 // between two preemption points
#define SEARCH_NICE    5   // what gives an answer comes first, until the search sees its gate

static hth_err paced_turn(void *ctx)
{
    const hth_paced *p = ctx;
    (void)hth_work_point(p->site->queue);
    return p->r != NULL && *hth_request_canceled(p->r)
               ? hth_fail(HTH_ECANCELED, "canceled while it was being prepared")
               : HTH_OK;
}

void hth_paced_begin(hth_paced *paced, hth_site *site, const hth_request *request)
{
    *paced = (hth_paced){.site = site, .r = request};
    paced->pace = (hth_pace){
        .most_work = UINT64_MAX, .most_bytes = UINT64_MAX, .turn = paced_turn, .ctx = paced};
    paced->before = hth_pace_enter(&paced->pace);
}

void hth_paced_end(hth_paced *paced)
{
    hth_pace_leave(paced->before);
}

// A search that computes on a thread of its own.
typedef struct paced_search {
    hth_err (*fn)(void *arg);
    void *arg;
    hth_err err;
    char detail[1024];
    atomic_int over, canceled;
    hth_plan_gate gate;
} paced_search;

static void search_main(void *ctx)
{
    paced_search *s = ctx;
    hth_thread_nice(SEARCH_NICE);
    s->err = s->fn(s->arg);
    if (s->err != HTH_OK) {
        snprintf(s->detail, sizeof s->detail, "%s", hth_err_detail());
    }
    s->over = 1;
}

// search_wait lets others compute, as a slice of the engine's thread would. What they do is counted
// by nobody here, and what they are refused is not why the search ends.
static hth_err search_wait(paced_search *search, hth_site *site)
{
    hth_err err = HTH_OK;
    char why[sizeof search->detail] = "";
    hth_pace *pace = hth_pace_enter(NULL);
    while (!search->over) {
        hth_plan_gate_shut(&search->gate);
        if (pace != NULL && pace->turn != NULL && err == HTH_OK) {
            err = pace->turn(pace->ctx);
            snprintf(why, sizeof why, "%s", hth_err_detail());
        } else {
            (void)hth_work_point(site->queue);
        }
        hth_plan_gate_open(&search->gate);
        search->canceled = err != HTH_OK;
        usleep(SEARCH_LOOK_US);
    }
    hth_pace_leave(pace);
    return err == HTH_OK ? HTH_OK : hth_fail(err, "%s", why);
}

static void search_watches(paced_search *search, hth_plan_options *options)
{
    options->cancel = &search->canceled;
    options->gate = &search->gate;
}

static hth_err search_apart(hth_site *site, hth_plan_options *options, hth_err (*fn)(void *arg),
                            void *arg)
{
    hth_plan_options before = *options;
    paced_search s = {.fn = fn, .arg = arg};
    pthread_t thread;
    hth_plan_gate_init(&s.gate);
    search_watches(&s, options);
    bool apart = hth_thread_start("search", search_main, &s, &thread) == HTH_OK;
    hth_err err = apart ? search_wait(&s, site) : fn(arg);
    if (apart) {
        hth_thread_join(thread);
    }
    *options = before;
    hth_plan_gate_fini(&s.gate);
    HTH_TRY(err);
    return s.err != HTH_OK ? hth_fail(s.err, "%s", s.detail) : HTH_OK;
}

hth_err hth_paced_search(hth_site *site, const hth_request *request, hth_plan_options *options,
                         hth_err (*fn)(void *arg), void *arg)
{
    hth_paced paced;
    if (site == NULL || site->queue == NULL) {
        return fn(arg);
    }
    if (request == NULL) {
        return search_apart(site, options, fn, arg);
    }
    hth_paced_begin(&paced, site, request);
    hth_err err = search_apart(site, options, fn, arg);
    hth_paced_end(&paced);
    return err;
}
