// SPDX-License-Identifier: Apache-2.0
// A job whose first plan was hardly searched for gets a better one while it runs. Its followers,
// its row and its log say so, and its losses are those of a job that keeps its plan.
#include "tests/rig/train_job.h"

#include "base/sanitized.h"

#define AFTER 3   // steps with the better plan, at least
#define MOST  300 // .. and without: its first plan was a good one then

// What the job said, on the engine's thread.
static struct {
    atomic_int enough; // it may end
    atomic_int none;   // there was no better plan
    int steps, after;
    json_t *event;
} heard;

static void note_replanned(hth_request *request, const char *what, uint64_t done, uint64_t total)
{
    json_t *o = json_loads(what, 0, NULL);
    if (json_object_get(o, "replanned") != NULL && heard.event == NULL) {
        heard.event = json_incref(json_object_get(o, "replanned"));
    } else if (json_object_get(o, "step") != NULL) {
        heard.steps = (int)done;
        heard.after += heard.event != NULL;
        heard.none = heard.event == NULL && done >= MOST;
        request->canceled = heard.none || (heard.after >= AFTER && heard.enough);
        if (done > 10) {
            usleep(10000); // the search has the lowest priority
        }
    }
    json_decref(o);
}

static json_t *quick(const char *data, const char *budget, const char *more)
{
    char text[400];
    double want[STEPS];
    snprintf(text, sizeof text, "{\"budget\": \"%s\", \"plan-ms\": 0.001, \"epochs\": 10000000%s}",
             budget, more);
    return arguments_of(&unet, data, text, want);
}

// job_of is NULL before the job is there.
static json_t *job_of(fixture *f, const char *job)
{
    char text[100];
    hth_err err;
    snprintf(text, sizeof text, "{\"job\": \"%s\"}", job);
    json_t *doc = ask(f, "job", text, &err);
    assert_true(err == HTH_OK || err == HTH_ENOENT);
    return doc;
}

// until_replanned waits for the job's row to have a better plan; false: it has ended without.
static bool until_replanned(fixture *f)
{
    for (bool ended = false; !ended;) {
        json_t *doc = job_of(f, "result"), *swap = json_object_get(doc, "replanned");
        int replans = (int)json_integer_value(json_object_get(doc, "replans"));
        ended = json_is_integer(json_object_get(doc, "ended_ns"));
        bool has = swap != NULL;
        assert_true(has == (replans > 0));
        if (ended && !heard.none) {
            fail_msg("the job ended: %s", json_string_value(json_object_get(doc, "why")));
        }
        json_decref(doc);
        if (has) {
            return true;
        }
        usleep(1000);
    }
    return false;
}

// A job with this budget, until it has made some steps with a better plan. false: there is none.
static bool replanned(fixture *f, const char *data, const char *budget)
{
    json_t *q = quick(data, budget, "");
    char *arguments = json_dumps(q, JSON_COMPACT);
    call c = {.r = {.command = HTH_COMMAND_TRAIN,
                    .arguments = arguments,
                    .progress = note_replanned,
                    .tenant = as_tenant,
                    .admin = as_admin}};
    json_decref(heard.event);
    heard.event = NULL;
    heard.steps = heard.after = heard.enough = heard.none = 0;
    call_start(f->engine, &c);
    bool found = until_replanned(f);
    heard.enough = 1;
    assert_int_equal(call_wait(&c), HTH_ECANCELED);
    json_decref(q);
    free(arguments);
    hth_free(c.r.json);
    return found && !heard.none;
}

static void a_better_plan_is_taken(void **state)
{
    fixture f;
    char data[200], text[100];
    if (HTH_SANITIZED) { // with its times of kernels none is better; see replan_test.c
        skip();
    }
    static const char *const budgets[] = {"46%", "50%", "42%", "54%", "38%", "60%"};
    const char *budget = NULL;
    for (size_t i = 0; i < sizeof budgets / sizeof *budgets && budget == NULL; i++) {
        if (i > 0) {
            fixture_close(&f);
        }
        fixture_open(&f, "cpu:mem=256MiB,threads=1,link=0.2GB/s");
        prepare(&f, &unet, data);
        budget = replanned(&f, data, budgets[i]) ? budgets[i] : NULL;
    }
    assert_non_null(heard.event);
    double from = json_number_value(json_object_get(heard.event, "from_ms")),
           to = json_number_value(json_object_get(heard.event, "to_ms"));
    int step = (int)json_integer_value(json_object_get(heard.event, "step"));
    print_message("# after step %d of %d: %.4g ms in place of %.4g ms\n", step, heard.steps, to,
                  from);
    assert_true(step > 1 && step + AFTER <= heard.steps && to > 0 && to < from);
    snprintf(text, sizeof text, "a better plan after step %d: ", step);
    assert_true(logged(&f, "result", text));
    train_and_leave(&f, quick(data, budget, ", \"replan\": \"off\", \"save-as\": \"plain\""),
                    heard.steps);
    assert_false(logged(&f, "plain", "a better plan"));
    json_t *a = job_of(&f, "result"), *b = job_of(&f, "plain");
    same_losses(a, b, (size_t)heard.steps);
    json_decref(a);
    json_decref(b);
    json_decref(heard.event);
    fixture_close(&f);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_better_plan_is_taken),
    };
    return cmocka_run_group_tests_name("train_replan", tests, NULL, NULL);
}
