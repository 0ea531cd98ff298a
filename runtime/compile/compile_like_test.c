// SPDX-License-Identifier: Apache-2.0
// One set of forms of weights for all batches of a model, whichever algorithms are measured to be
// the fastest for each.
#include "runtime/compile/compile_impl.h"
#include "engine/serve/infer.h"
#include "engine/serve/tune.h"
#include "runtime/job_memory.h"
#include "runtime/ledger.h"
#include "tests/rig/site_rig.h"

#define NODES 64
#define SMALL 1
#define LARGE 4

// What is measured is kept, and afterwards said to be as the test has it.
typedef struct timing {
    char key[HTH_CONVSEL_KEY], value[4096];
} timing;

typedef struct rig {
    site_rig s;
    hth_model *model;
    hth_timing_cache cache;
    timing t[NODES];
    int n;
} rig;

static timing *timing_of(rig *r, const char *key)
{
    for (int i = 0; i < r->n; i++) {
        if (strcmp(r->t[i].key, key) == 0) {
            return &r->t[i];
        }
    }
    return NULL;
}

static hth_err rig_get(void *ctx, const char *key, char *value, size_t cap)
{
    const timing *t = timing_of(ctx, key);
    if (t == NULL || strlen(t->value) >= cap) {
        return HTH_ENOENT;
    }
    strcpy(value, t->value);
    return HTH_OK;
}

static hth_err rig_put(void *ctx, const char *key, const char *value)
{
    rig *r = ctx;
    timing *t = timing_of(r, key);
    t = t != NULL ? t : &r->t[r->n++];
    assert_true(r->n <= NODES && strlen(value) < sizeof t->value);
    strcpy(t->key, key);
    strcpy(t->value, value);
    return HTH_OK;
}

static void rig_open(rig *r, const char *path)
{
    memset(r, 0, sizeof *r);
    r->cache = (hth_timing_cache){.get = rig_get, .put = rig_put, .ctx = r};
    site_rig_open(&r->s, &r->cache);
    put(r->s.store, "m", path);
    assert_ok(hth_model_find(&r->s.models, "m", &r->model));
}

static void rig_close(rig *r)
{
    site_rig_close(&r->s);
}

// The program for so many samples, on the device.
static hth_program *rig_program(rig *r, int64_t samples, bool tune)
{
    hth_program *p;
    hth_tensor in[4] = {{.data = NULL}};
    assert_true(r->model->source.graph->n_inputs <= 4);
    assert_ok(hth_model_synthetic(r->model, samples, true, in));
    assert_ok(hth_infer_program(&r->s.models, &r->model->source, in, tune, NULL, &p));
    assert_ok(hth_program_activate(&r->s.site, p));
    for (int i = 0; i < 4; i++) {
        hth_free(in[i].data);
    }
    return p;
}

static uint64_t rig_private(const rig *r)
{
    hth_ledger l;
    assert_ok(hth_ledger_read(&r->s.site, &l));
    assert_int_equal(l.difference, 0);
    uint64_t bytes = l.private_bytes;
    hth_ledger_fini(&l);
    return bytes;
}

static void rig_forget(rig *r)
{
    while (r->model->source.programs != NULL) {
        hth_program_free(&r->s.site, r->model->source.programs);
    }
}

// A family of algorithms in one form: "winograd_4x4", of whatever instruction set, but without what
// may stand after that; or "lowered:amx".
static bool family_is(const char *name, const char *family)
{
    size_t n = strlen(family);
    bool whole = strchr(family, ':') != NULL && name[n] == 0;
    return strncmp(name, family, n) == 0 &&
           (whole || (name[n] == ':' && strchr(name + n + 1, ':') == NULL));
}

// Convolutions of so many samples are said to take `a_us` by algorithms of the family `a`, `b_us`
// by b's, and 200 by others, of whatever error they have.
static void rig_say(rig *r, int64_t samples, const char *a, double a_us, const char *b, double b_us)
{
    char batch[32];
    snprintf(batch, sizeof batch, "Conv FP32[%lld,", (long long)samples);
    for (int i = 0; i < r->n; i++) {
        timing *t = &r->t[i];
        char text[sizeof t->value] = "", *rest;
        size_t at = 0;
        if (strstr(t->key, batch) == NULL) {
            continue;
        }
        for (char *line = strtok_r(t->value, "\n", &rest); line;
             line = strtok_r(NULL, "\n", &rest)) {
            char name[48];
            unsigned long long workspace, resident;
            int used;
            if (strncmp(line, "disturbed ", 10) == 0) {
                continue; // the machine was busy: what is said is not
            }
            assert_int_equal(
                sscanf(line, "%47s %llu %llu %*f%n", name, &workspace, &resident, &used), 3);
            double us = family_is(name, b) ? b_us : 200;
            us = family_is(name, a) ? a_us : us;
            at += (size_t)snprintf(text + at, sizeof text - at, "%s %llu %llu %.3f%s\n", name,
                                   workspace, resident, us, line + used);
        }
        strcpy(t->value, text);
    }
}

// Whether a convolution of the model has such an algorithm.
static bool rig_has(const rig *r, const char *family)
{
    char name[48];
    bool has = false;
    for (int i = 0; i < r->n; i++) {
        for (const char *line = r->t[i].value; line[0] != 0; line = strchr(line, '\n') + 1) {
            has = has || (sscanf(line, "%47s", name) == 1 && family_is(name, family));
        }
    }
    return has;
}

static bool uses(const hth_program *program, const char *family)
{
    bool any = false;
    for (int i = 0; i < program->problem.n_nodes; i++) {
        any = any || family_is(program->problem.nodes[i].alternatives[0].name, family);
    }
    return any;
}

static void rig_measure(rig *r)
{
    rig_open(r, "tests/data/digits/digits.onnx");
    rig_program(r, SMALL, true);
    rig_program(r, LARGE, true);
    rig_forget(r);
}

// The larger batch gains much in other forms than the smaller's, which loses little in those.
static void rig_gains(rig *r)
{
    rig_measure(r);
    rig_say(r, SMALL, "winograd_4x4", 10, "winograd_2x2", 10.5);
    rig_say(r, LARGE, "winograd_4x4", 100, "winograd_2x2", 20);
}

// What the weights take with a program for so many samples alone.
static uint64_t rig_alone(rig *r, int64_t samples, const char *family)
{
    assert_true(uses(rig_program(r, samples, true), family));
    uint64_t bytes = rig_private(r);
    rig_forget(r);
    return bytes;
}

// A larger batch that is a tenth faster in other forms reads the smaller one's copies.
static void test_shares(void **state)
{
    rig r;
    rig_measure(&r);
    rig_say(&r, SMALL, "winograd_4x4", 10, "winograd_2x2", 20);
    rig_say(&r, LARGE, "winograd_4x4", 22, "winograd_2x2", 20);
    uint64_t set = rig_alone(&r, SMALL, "winograd_4x4");
    assert_true(rig_alone(&r, LARGE, "winograd_2x2") < set);
    rig_program(&r, SMALL, true);
    hth_program *p = rig_program(&r, LARGE, true);
    assert_true(uses(p, "winograd_4x4") && !uses(p, "winograd_2x2"));
    assert_int_equal(hth_program_extra(p), 0);
    assert_int_equal(rig_private(&r), set);
    rig_close(&r);
}

// Where the mix gains, the set is another one, for both: the other batch has its own copies until
// it is made again.
static void test_leads(void **state)
{
    rig r;
    rig_gains(&r);
    uint64_t set = rig_alone(&r, LARGE, "winograd_2x2");
    hth_program *small = rig_program(&r, SMALL, true);
    assert_true(uses(small, "winograd_4x4"));
    assert_true(uses(rig_program(&r, LARGE, true), "winograd_2x2"));
    assert_true(small->stale && small->active);
    assert_true(rig_private(&r) > set);
    assert_ptr_equal(rig_program(&r, SMALL, false), small);
    hth_program_deactivate(&r.s.site, small);
    small = rig_program(&r, SMALL, false);
    assert_true(small->tuned && !small->stale && uses(small, "winograd_2x2"));
    assert_int_equal(rig_private(&r), set);
    assert_int_equal(r.model->source.n_programs, 2);
    rig_close(&r);
}

typedef struct rest {
    void *piece[64];
    int n;
} rest;

// What the device has left is somebody else's until rest_free.
static void rest_take(rig *r, rest *rest)
{
    rest->n = 0;
    for (size_t bytes = r->s.site.device->props.budget_bytes; bytes >= 4096;) {
        bool had = rest->n < 64 && hth_pool_alloc(r->s.site.pool, bytes, HTH_POOL_WORKSPACE,
                                                  &rest->piece[rest->n]) == HTH_OK;
        rest->n += had;
        bytes = had ? bytes : bytes / 2;
    }
}

static void rest_free(rig *r, rest *rest)
{
    while (rest->n > 0) {
        hth_pool_free(r->s.site.pool, rest->piece[--rest->n]);
    }
}

// Without room for both sets the other batch has no copies at once.
static void test_leads_tight(void **state)
{
    rig r;
    rest others;
    rig_gains(&r);
    uint64_t set = rig_alone(&r, LARGE, "winograd_2x2");
    hth_program *small = rig_program(&r, SMALL, true);
    rest_take(&r, &others);
    assert_true(uses(rig_program(&r, LARGE, true), "winograd_2x2"));
    assert_true(small->stale && !small->active);
    rest_free(&r, &others);
    assert_int_equal(rig_private(&r), set);
    rig_close(&r);
}

// The engine makes it again by itself; and the order in which batches are measured changes nothing.
static void test_follows(void **state)
{
    rig r;
    rig_gains(&r);
    uint64_t set = rig_alone(&r, LARGE, "winograd_2x2");
    rig_program(&r, SMALL, true);
    rig_program(&r, LARGE, true);
    for (int i = 0; i < 100 && hth_tune_step(&r.s.models); i++) {
    }
    assert_false(hth_tune_step(&r.s.models));
    assert_int_equal(r.model->source.n_programs, 2);
    for (hth_program *p = r.model->source.programs; p != NULL; p = p->next) {
        assert_true(p->tuned && !p->stale && uses(p, "winograd_2x2"));
        assert_ok(hth_program_activate(&r.s.site, p));
    }
    assert_int_equal(rig_private(&r), set);
    rig_forget(&r);
    rig_program(&r, LARGE, true);
    assert_true(uses(rig_program(&r, SMALL, true), "winograd_2x2"));
    assert_int_equal(rig_private(&r), set);
    rig_close(&r);
}

// A pinned program's forms stay, and so does the pin when measured algorithms take its place.
static void test_pinned(void **state)
{
    rig r;
    rig_gains(&r);
    uint64_t set = rig_alone(&r, SMALL, "winograd_4x4");
    hth_program *small = rig_program(&r, SMALL, true);
    hth_program_pin(&r.s.site, small, true);
    assert_true(uses(rig_program(&r, LARGE, true), "winograd_4x4"));
    assert_true(small->active && !small->stale);
    assert_int_equal(rig_private(&r), set);
    rig_forget(&r);
    small = rig_program(&r, SMALL, false);
    small->runs = 1000;
    hth_program_pin(&r.s.site, small, true);
    for (int i = 0; i < 100 && hth_tune_step(&r.s.models); i++) {
    }
    small = r.model->source.programs;
    assert_true(small->tuned && small->pinned && small->active && small->next == NULL);
    rig_close(&r);
}

static void tune_all(rig *r)
{
    for (int i = 0; i < 1000 && hth_tune_step(&r->s.models); i++) {
    }
    assert_false(hth_tune_step(&r->s.models));
}

static int n_pinned(const rig *r)
{
    int n = 0;
    for (const hth_program *p = r->model->source.programs; p != NULL; p = p->next) {
        n += p->pinned && p->active;
    }
    return n;
}

// The pin stays when slices are measured against the whole batch and the pinned program is one of
// those.
static void test_pinned_slice(void **state)
{
    rig r;
    rig_gains(&r);
    hth_program_pin(&r.s.site, rig_program(&r, SMALL, false), true);
    hth_program *large = rig_program(&r, LARGE, false);
    large->runs = 1000;
    tune_all(&r);
    assert_int_equal(n_pinned(&r), 1);
    assert_true(rig_program(&r, SMALL, false)->pinned && r.s.site.pinned_bytes > 0);
    assert_int_equal(r.model->source.n_programs, 2);
    rig_close(&r);
}

// What takes a pinned program's place has larger weights, and others the rest of the device: the
// pinned program stays.
static void test_pinned_tight(void **state)
{
    rig r;
    rest others;
    rig_measure(&r);
    rig_say(&r, SMALL, "winograd_2x2", 10, "winograd_4x4", 20);
    uint64_t set = rig_alone(&r, SMALL, "winograd_2x2");
    hth_program *small = rig_program(&r, SMALL, true);
    small->tuned = false;
    hth_program_pin(&r.s.site, small, true);
    rig_say(&r, SMALL, "winograd_4x4", 10, "winograd_2x2", 20);
    hth_site_trim(&r.s.site); // a larger arena of before would be room
    rest_take(&r, &others);
    assert_ptr_equal(rig_program(&r, SMALL, true), small);
    assert_int_equal(n_pinned(&r), 1);
    small->runs = 1000;
    tune_all(&r);
    assert_ptr_equal(r.model->source.programs, small);
    assert_int_equal(n_pinned(&r), 1);
    assert_int_equal(r.model->source.n_programs, 1);
    assert_int_equal(rig_private(&r), set);
    rest_free(&r, &others);
    small->tuned = small->sliced = false;
    tune_all(&r);
    assert_int_equal(n_pinned(&r), 1);
    assert_true(uses(r.model->source.programs, "winograd_4x4"));
    rig_close(&r);
}

// What takes a pinned program's place is planned for what there is then, and not for what there was
// when that one was planned: less while there is a job, and more after it.
static void test_pinned_budget(void **state)
{
    rig r;
    hth_job_memory job = {.account = NULL};
    rig_gains(&r);
    hth_program *p = rig_program(&r, SMALL, true);
    uint64_t all = r.s.site.device->props.budget_bytes;
    hth_program_pin(&r.s.site, p, true);
    assert_int_equal(p->budget, all);
    for (int jobs = 1; jobs >= 0; jobs--) {
        uint64_t taken = jobs > 0 ? all / 4 : 0;
        hth_job_memory_set(&r.s.site, &job, &(hth_curve_point){.device_bytes = taken});
        p->runs = 1000;
        p->tuned = p->sliced = false;
        tune_all(&r);
        p = r.model->source.programs;
        assert_int_equal(n_pinned(&r), 1);
        assert_int_equal(r.model->source.n_programs, 1);
        assert_int_equal(p->budget, all - taken);
        hth_job_memory_set(&r.s.site, &job, &(hth_curve_point){.device_bytes = 2 * taken});
        p->tuned = false;
        p = rig_program(&r, SMALL, true); // which somebody asks for
        assert_int_equal(n_pinned(&r), 1);
        assert_int_equal(p->budget, all - 2 * taken);
    }
    rig_close(&r);
}

// lowered:amx multiplies by three products of bf16: its error is some ten times that of sums in
// FP32, far below the tolerance that is set unless somebody sets a smaller one.
static void test_tolerance(void **state)
{
    rig r;
    rig_measure(&r);
    if (!rig_has(&r, "lowered:amx")) {
        rig_close(&r);
        skip();
    }
    rig_say(&r, SMALL, "lowered:amx", 10, "lowered:avx512", 20);
    rig_say(&r, LARGE, "lowered:amx", 10, "lowered:avx512", 20);
    assert_true(uses(rig_program(&r, SMALL, true), "lowered:amx"));
    rig_forget(&r);
    r.s.site.tolerance = 1e-6;
    assert_true(uses(rig_program(&r, SMALL, true), "lowered:avx512"));
    hth_program *p = rig_program(&r, LARGE, true); // nor for a copy that there is
    assert_true(uses(p, "lowered:avx512") && !uses(p, "lowered:amx"));
    rig_close(&r);
}

// A program whose weights have left the device needs room for them, too.
static void test_room(void **state)
{
    rig r;
    hth_pool_ledger l;
    void *rest[8];
    int n = 0;
    uint64_t weights, arena;
    rig_open(&r, "tests/data/digits/digits.onnx");
    hth_site *site = &r.s.site;
    hth_program *p = rig_program(&r, SMALL, false);
    hth_program_ledger(p, &weights, &arena);
    assert_true(weights > 0);
    hth_program_deactivate(site, p);
    hth_pool_ledger_get(site->pool, &l);
    assert_ok(hth_pool_alloc(site->pool, l.largest_free_bytes, HTH_POOL_WORKSPACE, &rest[n++]));
    assert_true(hth_program_room(site, p)); // they are there still
    hth_program_evict(site, p);
    for (hth_pool_ledger_get(site->pool, &l); l.free_bytes >= weights && n < 8;
         hth_pool_ledger_get(site->pool, &l)) {
        assert_ok(hth_pool_alloc(site->pool, l.largest_free_bytes, HTH_POOL_WORKSPACE, &rest[n++]));
    }
    assert_false(hth_program_room(site, p));
    while (n > 0) {
        hth_pool_free(site->pool, rest[--n]);
    }
    assert_true(hth_program_room(site, p));
    rig_close(&r);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_shares),       cmocka_unit_test(test_leads),
        cmocka_unit_test(test_leads_tight),  cmocka_unit_test(test_follows),
        cmocka_unit_test(test_pinned),       cmocka_unit_test(test_pinned_slice),
        cmocka_unit_test(test_pinned_tight), cmocka_unit_test(test_pinned_budget),
        cmocka_unit_test(test_tolerance),    cmocka_unit_test(test_room),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
