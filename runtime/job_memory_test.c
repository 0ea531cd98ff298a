// SPDX-License-Identifier: Apache-2.0
// Several training jobs on one device: each with memory of its own, in turns; those for which there
// is not enough wait and say why, and begin by themselves; models are served beside them.
#include "planner/plan_least_test.h"
#include "tests/rig/train_job.h"

typedef struct shared {
    fixture f;
    char data[200];
    json_int_t whole; // bytes, of a job that has all it wants
    double loss[STEPS];
} shared;

static char *job_text(const shared *s, const char *save_as, int epochs, const char *more)
{
    char all[300];
    double want[STEPS];
    snprintf(all, sizeof all,
             "{\"batch\": 24, \"epochs\": %d, \"plan-ms\": 200, \"save-as\": \"%s\"%s}", epochs,
             save_as, more);
    json_t *q = arguments_of(&unet, s->data, all, want);
    char *text = json_dumps(q, JSON_COMPACT);
    json_decref(q);
    return text;
}

// more: options of the device, after a comma.
static void shared_reopen_as(shared *s, double bytes, const char *more)
{
    char device[100];
    hth_engine_close(s->f.engine);
    snprintf(device, sizeof device, "cpu:mem=%.0f,%s", bytes, more);
    hth_engine_config config = {.device = device, .event = events_event};
    assert_ok(hth_engine_open(&config, s->f.store, &s->f.engine));
}

static void shared_reopen(shared *s, double bytes)
{
    shared_reopen_as(s, bytes, "threads=2");
}

// An engine with `share` times what the job wants. Its store knows what all nodes cost.
static void shared_open(shared *s, double share)
{
    hth_err err;
    fixture_open(&s->f, "cpu:mem=256MiB,threads=2");
    prepare(&s->f, &unet, s->data);
    char *text = job_text(s, "whole", 3, "");
    json_t *doc = train(&s->f, json_loads(text, 0, NULL), &err);
    assert_non_null(doc);
    s->whole = json_integer_value(json_object_get(doc, "unconstrained_bytes"));
    for (size_t i = 0; i < 3; i++) {
        json_t *step = json_array_get(json_object_get(doc, "history"), i);
        s->loss[i] = json_number_value(json_array_get(step, 0));
    }
    json_decref(doc);
    free(text);
    shared_reopen(s, share * (double)s->whole);
}

static json_int_t job_bytes(shared *s, const char *job, const char *key)
{
    char q[60];
    hth_err err;
    snprintf(q, sizeof q, "{\"job\": \"%s\"}", job);
    json_t *row = ask(&s->f, "job", q, &err);
    assert_non_null(row);
    json_int_t v = json_integer_value(json_object_get(row, key));
    json_decref(row);
    return v;
}

// Waits until the job is in that state; what it says is in `why`.
static void expect_state(shared *s, const char *job, const char *state, char *why)
{
    char q[60], seen[40] = "";
    snprintf(q, sizeof q, "{\"job\": \"%s\"}", job);
    uint64_t seen_events = 0;
    for (int i = 0; i < 12000; i++) {
        hth_err err;
        json_t *row = ask(&s->f, "job", q, &err);
        const char *text = json_string_value(json_object_get(row, "why"));
        snprintf(seen, sizeof seen, "%s",
                 row != NULL ? json_string_value(json_object_get(row, "state")) : "unknown");
        snprintf(why, 300, "%s", text != NULL ? text : "");
        json_decref(row);
        if (strcmp(seen, state) == 0) {
            return;
        }
        events_wait(&seen_events);
    }
    hth_err err;
    json_t *jobs = ask(&s->f, "jobs", "{}", &err);
    fail_msg("job %s is %s, not %s: %s", job, seen, state, json_dumps(jobs, JSON_COMPACT));
}

static void cancel(shared *s, const char *job, witness *w, char *text)
{
    char q[60];
    hth_err err;
    snprintf(q, sizeof q, "{\"job\": \"%s\"}", job);
    json_decref(ask(&s->f, "cancel", q, &err));
    assert_int_equal(err, HTH_OK);
    assert_true(w->c.finished);
    free(text);
}

static void submit(shared *s, witness *w, char *text)
{
    *w = (witness){.c = {.r = {.command = HTH_COMMAND_TRAIN, .arguments = text}}};
    call_start(s->f.engine, &w->c);
}

// The bytes that a plan for the job was found for.
static unsigned long long job_floor(shared *s, const char *more)
{
    unsigned long long need = 0;
    char all[100];
    snprintf(all, sizeof all, ", \"budget\": \"100KB\"%s", more);
    char *text = job_text(s, "small", 1, all);
    call c = {.r = {.command = HTH_COMMAND_TRAIN, .arguments = text}};
    assert_int_equal(call_run(s->f.engine, &c), HTH_ETOOBIG);
    need = pl_found(hth_err_detail());
    assert_true(need > 0);
    free(text);
    return need;
}

static void jobs_share_a_device(void **state)
{
    shared s;
    witness a, b, c;
    char why[300], budget[60];
    hth_err err;
    shared_open(&s, 1.1);
    // Enough for two, and for the tenth that jobs leave to models.
    double need = (double)job_floor(&s, ""), device = 2.7 * need;
    shared_reopen(&s, device);
    snprintf(budget, sizeof budget, ", \"budget\": \"%.0f\"", 1.3 * need);
    char *text_a = job_text(&s, "a", 100000000, budget), *text_b = job_text(&s, "b", 100000, "");
    char *text_c = job_text(&s, "c", 3, "");
    json_decref(
        ask(&s.f, "bench", "{\"model\": \"unet_adam\", \"batch\": 1, \"seconds\": 0}", &err));
    assert_int_equal(err, HTH_OK);
    train_three_steps(&s.f, &a, text_a);
    json_int_t first = job_bytes(&s, "a", "peak_bytes");
    assert_true((double)first <= 1.3 * need && (double)first > 0.9 * need);
    train_three_steps(&s.f, &b, text_b); // beside it, with what is left
    witness_let_go();
    expect_state(&s, "a", "running", why);
    expect_state(&s, "b", "running", why);
    json_int_t left = (json_int_t)device - first;
    assert_true(job_bytes(&s, "b", "peak_bytes") <= left);
    assert_true(job_bytes(&s, "b", "budget_bytes") <= left);
    json_int_t step = job_bytes(&s, "a", "step");
    expect_state(&s, "b", "running", why);
    assert_true(job_bytes(&s, "a", "step") >= step);
    // A third one has to wait, and says for what.
    submit(&s, &c, text_c);
    expect_state(&s, "c", "queued", why);
    assert_non_null(strstr(why, "of device memory, of which "));
    // Models are served meanwhile.
    json_t *doc =
        ask(&s.f, "bench", "{\"model\": \"unet_adam\", \"batch\": 1, \"seconds\": 0}", &err);
    if (doc == NULL) {
        fail_msg("a model beside jobs: %s", hth_err_detail());
    }
    json_decref(doc);
    cancel(&s, "a", &a, text_a);
    expect_state(&s, "c", "finished", why);
    assert_ok(call_wait(&c.c));
    doc = json_loads(c.c.r.json, 0, NULL);
    for (size_t i = 0; i < 3; i++) {
        json_t *one = json_array_get(json_object_get(doc, "history"), i);
        assert_true(fabs(json_number_value(json_array_get(one, 0)) - s.loss[i]) < 1e-3);
    }
    json_decref(doc);
    hth_free(c.c.r.json);
    free(text_c);
    cancel(&s, "b", &b, text_b);
    fixture_close(&s.f);
}

// A job that waits and is left by its client is gone; so is what waits when the engine stops.
static void waiting_jobs_can_be_left(void **state)
{
    shared s;
    witness a, b, c;
    char why[300];
    shared_open(&s, 1.1);
    shared_reopen(&s, 1.5 * (double)job_floor(&s, "")); // enough for one
    char *text_a = job_text(&s, "a", 100000000, ""), *text_b = job_text(&s, "b", 1, "");
    char *text_c = job_text(&s, "c", 1, "");
    train_three_steps(&s.f, &a, text_a);
    witness_let_go();
    submit(&s, &b, text_b);
    submit(&s, &c, text_c);
    expect_state(&s, "b", "queued", why);
    expect_state(&s, "c", "queued", why); // planned as well
    b.c.r.canceled = 1;
    assert_int_equal(call_wait(&b.c), HTH_ECANCELED);
    expect_state(&s, "c", "queued", why);
    cancel(&s, "c", &c, text_c);
    submit(&s, &c, text_b);
    expect_state(&s, "b", "queued", why);
    fixture_close(&s.f);
    assert_true(a.c.finished && c.c.finished && c.c.r.err == HTH_ECANCELED);
    free(text_a);
    free(text_b);
}

// ---- a link

#define OFFLOADED ", \"policy\": \"vdnn\", \"replan\": \"off\""

static json_t *link_row(shared *s, const char *job)
{
    char q[60];
    hth_err err;
    snprintf(q, sizeof q, "{\"job\": \"%s\"}", job);
    json_t *row = ask(&s->f, "job", q, &err);
    assert_ok(err);
    return row;
}

static double link_number(const json_t *row, const char *key)
{
    assert_true(json_is_number(json_object_get(row, key)));
    return json_number_value(json_object_get(row, key));
}

static bool link_is(const json_t *a, const json_t *b, const char *key)
{
    return fabs(link_number(a, key) - link_number(b, key)) < 1e-9;
}

// The row of a job over a link of that rate. vDNN offloads what convolutions read, worth it or not,
// and searches no plan: equal jobs get equal plans however busy the machine is. The first plan of a
// step chooses among all algorithms, and the store keeps what it took: only those are what later
// plans choose among.
static json_t *alone_over(shared *s, const char *rate, witness *alone, char *more, size_t bytes)
{
    char device[60];
    snprintf(device, sizeof device, "threads=1,link=%sGB/s", rate);
    shared_reopen_as(s, 4 * (double)s->whole, device);
    snprintf(more, bytes, "%s, \"budget\": \"%llu\"", OFFLOADED, job_floor(s, OFFLOADED));
    char *text = job_text(s, "before", 100000, more);
    train_three_steps(&s->f, alone, text);
    cancel(s, "before", alone, text);
    text = job_text(s, "alone", 100000, more);
    train_three_steps(&s->f, alone, text);
    json_t *row = link_row(s, "alone");
    cancel(s, "alone", alone, text);
    return row;
}

// Three tenants' jobs, of whose copies less than three fit the link at the same time. In its turns
// each has all of it: all are planned as one that is alone, and none waits. How slow a link has to
// be for that depends on the kernels, and on what was measured of them this time.
static void tenants_share_a_link(void **state)
{
    enum { JOBS = 3, RATES = 5 };
    static const char *const tenants[JOBS] = {"alice", "bob", "carol"},
                             *const same[] = {"peak_bytes", "predicted_ms", "link_in", "link_out"},
                             *const rates[RATES] = {"0.4", "0.2", "0.1", "0.05", "0.02"};
    shared s;
    witness alone, w[JOBS];
    char why[300], more[160], *text[JOBS];
    json_t *first = NULL;
    double most = 0;
    shared_open(&s, 1.1);
    as_admin = true;
    for (int i = 0; i < RATES && JOBS * most <= 1; i++) {
        json_decref(first);
        first = alone_over(&s, rates[i], &alone, more, sizeof more);
        most = fmax(link_number(first, "link_in"), link_number(first, "link_out"));
    }
    assert_true(JOBS * most > 1);
    for (int i = 0; i < JOBS; i++) {
        as_tenant = tenants[i];
        text[i] = job_text(&s, tenants[i], 100000, more);
        train_three_steps(&s.f, &w[i], text[i]);
    }
    witness_let_go();
    for (int i = 0; i < JOBS; i++) {
        expect_state(&s, tenants[i], "running", why);
        json_t *row = link_row(&s, tenants[i]);
        for (size_t k = 0; k < sizeof same / sizeof *same; k++) {
            assert_true(link_is(row, first, same[k]));
        }
        json_decref(row);
    }
    for (int i = 0; i < JOBS; i++) {
        cancel(&s, tenants[i], &w[i], text[i]);
    }
    json_decref(first);
    as_tenant = NULL;
    as_admin = false;
    fixture_close(&s.f);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(jobs_share_a_device),
        cmocka_unit_test(waiting_jobs_can_be_left),
        cmocka_unit_test(tenants_share_a_link),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
