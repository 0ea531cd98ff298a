// SPDX-License-Identifier: Apache-2.0
// A model's wish is one program, for the bucket that was asked for last. All wishes count,
// whichever bucket they are for: one after the other each comes to its turn.
#include "engine/serve/serve_impl.h"

#include "base/alloc.h"
#include "base/clock.h"
#include "base/log.h"
#include "engine/serve/infer.h"

// A larger program is made after so many runs that would have used it, or when the engine is idle.
#define WISH_TIMES 8
// For how long a program that could not be had is not asked for again.
#define WISH_TOO_MANY_NS 60000000000u

// wish_room says that p has room, if need be by those that are made again anyway.
static bool wish_room(hth_site *site, const hth_program *p)
{
    return hth_program_room(site, p) ||
           (hth_program_evict_stale(site, p) && hth_program_room(site, p));
}

static uint64_t wish_time(void *ctx, const hth_batch_item *like, int64_t samples)
{
    hth_serve *s = ctx;
    const hth_infer_request *w = (const hth_infer_request *)like;
    const hth_program *p =
        hth_infer_ready(s->ms, &w->model->source, hth_infer_request_key(w, samples));
    if (p == NULL || (samples != like->samples && !hth_batch_run_fits(p)) ||
        (s->tuning && !p->active &&
         !hth_program_room(s->ms->site, p))) { // what is measured has its room
        return HTH_BATCH_NONE;
    }
    return p->run_ns;
}

static bool wish_alike(void *ctx, const hth_batch_item *a, const hth_batch_item *b)
{
    return hth_infer_request_alike((const hth_infer_request *)a, (const hth_infer_request *)b);
}

static bool wish_want(void *ctx, const hth_batch_item *like, int64_t samples)
{
    hth_serve *s = ctx;
    const hth_infer_request *w = (const hth_infer_request *)like;
    hth_model *m = w->model;
    hth_batch_wish *wish = &m->wish;
    const hth_tensor *key = hth_infer_request_key(w, samples);
    size_t n = (size_t)m->source.graph->n_inputs;
    if (m->too_many > 0 && samples >= m->too_many && hth_now_ns() < m->too_many_until_ns) {
        return false;
    }
    bool same = wish->key != NULL;
    for (size_t i = 0; i < n && same; i++) {
        same = hth_shape_equal(&wish->key[i].shape, &key[i].shape);
    }
    if (!same) {
        hth_free(wish->key);
        wish->key = hth_memdup(key, n * sizeof *key);
        wish->samples = samples;
    }
    if (++wish->times >= WISH_TIMES && s->wished == NULL && wish->key != NULL) {
        s->wished = m;
        hth_model_hold(m);
    }
    return true;
}

void hth_serve_grant(hth_serve *s, hth_model *m)
{
    hth_batch_wish wish = m->wish;
    hth_program *p = NULL;
    m->wish = (hth_batch_wish){.key = NULL};
    hth_model_hold(m);
    hth_err err = hth_infer_program(s->ms, &m->source, wish.key, false, NULL, &p);
    bool serves = err == HTH_OK && hth_batch_run_fits(p) && wish_room(s->ms->site, p);
    if (!serves) {
        if (err == HTH_OK) {
            hth_program_free(s->ms->site, p);
        }
        m->too_many = wish.samples;
        m->too_many_until_ns = hth_now_ns() + WISH_TOO_MANY_NS;
    }
    hth_log(DEBUG, SERVER, "batch", "model=%s samples=%lld program=%s", m->name,
            (long long)wish.samples, serves ? "made" : "none");
    hth_free(wish.key);
    hth_model_rele(s->ms, m);
}

void hth_serve_oracle(hth_serve *s)
{
    hth_batch_oracle oracle = {
        .time_ns = wish_time, .alike = wish_alike, .want = wish_want, .ctx = s};
    hth_batcher_init(&s->batcher, &oracle);
}
