// SPDX-License-Identifier: Apache-2.0
// A program whose arena went to somebody else gets one again, whatever lies between.
#include "runtime/compile/compile.h"
#include "tests/rig/site_rig.h"

#define SAMPLES 16

typedef struct rig {
    site_rig s;
    hth_program *program;
    hth_program *other;    // pinned, of the same model with other inputs; NULL: none
    hth_tensor in, out[2]; // out: before, and after
    void *others;          // who have the rest of the device
} rig;

static hth_err none_get(void *ctx, const char *key, char *value, size_t cap)
{
    return HTH_ENOENT;
}

static hth_err none_put(void *ctx, const char *key, const char *value)
{
    return HTH_OK;
}

static const hth_timing_cache none = {.get = none_get, .put = none_put};

static hth_pool_ledger rig_ledger(const rig *r)
{
    hth_pool_ledger l;
    hth_pool_ledger_get(r->s.site.pool, &l);
    return l;
}

static void *rig_take(rig *r, size_t bytes, hth_pool_use use)
{
    void *at;
    assert_ok(hth_pool_alloc(r->s.site.pool, bytes, use, &at));
    return at;
}

static void rig_run(rig *r, int which)
{
    assert_ok(hth_program_run(&r->s.site, r->program, &r->in, &r->out[which], NULL));
}

static hth_program *rig_program(rig *r, hth_model *m, int64_t samples, hth_tensor *in)
{
    hth_program *p;
    assert_ok(hth_model_synthetic(m, samples, true, in));
    assert_ok(hth_infer_program(&r->s.models, &m->source, in, false, NULL, &p));
    return p;
}

// rig_open has an active program, whose arena has gone; what is free is as much as `arenas` of it,
// a half below the program's weights, and a half above them. `pinned` adds a second program, which
// is pinned.
static void rig_open(rig *r, double arenas, bool pinned)
{
    hth_model *m;
    memset(r, 0, sizeof *r);
    site_rig_open(&r->s, &none);
    put(r->s.store, "m", "tests/data/digits/digits.onnx");
    assert_ok(hth_model_find(&r->s.models, "m", &m));
    r->program = rig_program(r, m, SAMPLES, &r->in);
    for (int i = 0; i < 2; i++) {
        r->out[i] = hth_program_output(r->program, 0);
        r->out[i].data = hth_alloc(r->out[i].bytes);
    }
    if (pinned) {
        hth_tensor in;
        r->other = rig_program(r, m, 1, &in);
        hth_free(in.data);
        hth_program_evict(&r->s.site, r->other);
    }
    hth_program_evict(&r->s.site, r->program);
    hth_site_drop_arena(&r->s.site);
    size_t half = (size_t)(arenas / 2 * (double)r->program->plan->arena_bytes) / HTH_DEVICE_ALIGN *
                  HTH_DEVICE_ALIGN;
    hth_pool_ledger l = rig_ledger(r);
    assert_true(half > 0 && l.largest_free_bytes == l.free_bytes);
    void *low = rig_take(r, half, HTH_POOL_WEIGHT);
    rig_run(r, 0);
    if (pinned) {
        assert_ok(hth_program_activate(&r->s.site, r->other));
        hth_program_pin(&r->s.site, r->other, true);
    }
    hth_site_drop_arena(&r->s.site);
    l = rig_ledger(r);
    assert_true(l.used_bytes[HTH_POOL_WEIGHT] > half && l.largest_free_bytes == l.free_bytes);
    r->others = rig_take(r, l.free_bytes - half, HTH_POOL_WORKSPACE);
    hth_pool_free(r->s.site.pool, low);
    l = rig_ledger(r);
    assert_int_equal(l.free_bytes, 2 * half);
    assert_int_equal(l.largest_free_bytes, half);
}

static void rig_close(rig *r)
{
    hth_pool_free(r->s.site.pool, r->others);
    hth_free(r->in.data);
    hth_free(r->out[0].data);
    hth_free(r->out[1].data);
    site_rig_close(&r->s);
}

// The weights move, pinned or not, and the program computes what it did.
static void test_moves(void **state)
{
    for (int pinned = 0; pinned < 2; pinned++) {
        rig r;
        rig_open(&r, 1.5, false);
        hth_program_pin(&r.s.site, r.program, pinned != 0);
        assert_true(r.program->active);
        rig_run(&r, 1);
        assert_true(r.program->active && r.program->pinned == (pinned != 0));
        assert_memory_equal(r.out[0].data, r.out[1].data, r.out[0].bytes);
        rig_close(&r);
    }
}

// Where all that is free is too little nothing moves: the weights are not read again for nothing.
static void test_stays(void **state)
{
    rig r;
    hth_residency_stats before, after;
    rig_open(&r, 0.5, false);
    hth_residency_stats_get(r.s.site.residency, &before);
    assert_int_equal(hth_program_run(&r.s.site, r.program, &r.in, &r.out[1], NULL), HTH_ENODEVMEM);
    hth_residency_stats_get(r.s.site.residency, &after);
    assert_true(r.program->active && after.fills == before.fills);
    rig_close(&r);
}

static int rig_held(const hth_program *p)
{
    int n = 0;
    for (int i = 0; i < p->n_weights; i++) {
        n += p->weights[i].entry != NULL;
    }
    return n;
}

// If weights cannot be fetched again for lack of memory, inactive programs hold none of them.
static void test_fails(void **state)
{
    int parts = 0;
    hth_err err = HTH_ENOMEM;
    for (uint64_t nth = 1; err != HTH_OK; nth++) {
        rig r;
        hth_residency_stats stats;
        rig_open(&r, 1.5, true);
        assert_true(r.program->active && r.other->active && r.other->pinned);
        assert_true(rig_held(r.other) > 1);
        hth_fault_alloc(nth);
        err = hth_program_activate(&r.s.site, r.program);
        hth_fault_alloc(0);
        assert_true(err == HTH_OK || err == HTH_ENOMEM);
        assert_int_equal(r.program->active, err == HTH_OK);
        parts += !r.other->active;
        for (int i = 0; i < 2; i++) {
            const hth_program *p = i == 0 ? r.program : r.other;
            assert_true(p->active || rig_held(p) == 0);
        }
        hth_residency_stats_get(r.s.site.residency, &stats);
        assert_true(r.program->active || r.other->active || stats.resident_bytes == 0);
        rig_close(&r);
    }
    assert_true(parts > 1);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_moves), cmocka_unit_test(test_stays),
                                       cmocka_unit_test(test_fails)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
