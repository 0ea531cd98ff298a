// SPDX-License-Identifier: Apache-2.0
// Groups on two devices, each with memory for one member: whichever group waits for the other, both
// make progress in the end.
#include "engine/router/router.h"
#include "tests/rig/group_job.h"

#include "base/clock.h"
#include "base/settings.h"

#define ENDLESS "\"epochs\":1000000"

typedef struct rig {
    fixture f;
    char data[200], budget[60];
    json_t *whole; // summary of a job that was left alone
} rig;

typedef struct job {
    call c;
    char *text;
} job;

static char *job_text(const rig *r, const char *name, const char *on, const char *more)
{
    char all[300];
    double want[STEPS];
    bool several = strcmp(on, "cpu:1") != 0;
    snprintf(all, sizeof all, "{\"save-as\":\"%s\",\"on\":\"%s\",\"budget\":\"%s\",%s,%s}", name,
             on, r->budget, several ? "\"shards\":[[0,2,2]]" : "\"batch\":2", more);
    json_t *args = arguments_of(&encoder, r->data, all, want);
    char *text = json_dumps(args, JSON_COMPACT);
    json_decref(args);
    return text;
}

static void job_start(rig *r, job *j, const char *name, const char *on, const char *more)
{
    j->text = job_text(r, name, on, more);
    j->c = (call){.r = {.command = HTH_COMMAND_TRAIN, .arguments = j->text, .tenant = as_tenant}};
    call_start(r->f.engine, &j->c);
}

// rig_open has two devices with memory for `times` members, or jobs of batches as large as their
// shards.
static void rig_open(rig *r, double times)
{
    char devices[120];
    strcpy(r->budget, "64MiB");
    devices_open(&r->f, "cpu:0,mem=128MiB,threads=1 cpu:1,mem=128MiB,threads=1", false);
    prepare(&r->f, &encoder, r->data);
    job j;
    job_start(r, &j, "whole", "all", "\"epochs\":100");
    r->whole = finished(&j.c);
    free(j.text);
    double bytes = json_number_value(json_object_get(r->whole, "peak_bytes"));
    hth_engine_close(r->f.engine);
    snprintf(r->budget, sizeof r->budget, "%.0fKiB", bytes / 1024 + 1);
    snprintf(devices, sizeof devices, "cpu:0,mem=%.0fKiB,threads=1 cpu:1,mem=%.0fKiB,threads=1",
             bytes * times / 1024, bytes * times / 1024);
    engines_open(&r->f, devices, false);
}

static void rig_close(rig *r)
{
    json_decref(r->whole);
    fixture_close(&r->f);
}

static void change(rig *r, const char *what, const char *name)
{
    char args[100];
    hth_err err;
    snprintf(args, sizeof args, "{\"job\":\"%s\"}", name);
    json_decref(ask(&r->f, what, args, &err));
    if (err != HTH_OK) {
        fail_msg("%s %s: %s", what, name, hth_err_detail());
    }
}

static void job_cancel(rig *r, job *j, const char *name)
{
    change(r, "cancel", name);
    assert_int_equal(call_wait(&j->c), HTH_ECANCELED);
    free(j->text);
}

// until_state waits for a state of a job, with these words as its reason.
static void until_state(rig *r, const char *name, const char *state, const char *words)
{
    uint64_t until = hth_real_after(LIMIT_NS);
    for (bool is = false; !is;) {
        char args[100];
        hth_err err;
        snprintf(args, sizeof args, "{\"job\":\"%s\",\"points\":1}", name);
        json_t *row = ask(&r->f, "job", args, &err);
        const char *why = json_string_value(json_object_get(row, "why"));
        const char *word = json_string_value(json_object_get(row, "state"));
        is = word != NULL && strcmp(word, state) == 0 &&
             strstr(why != NULL ? why : "", words) != NULL;
        if (!is && hth_real_ns() >= until) {
            fail_msg("%s is not %s (%s): %s", name, state, words, json_dumps(row, JSON_COMPACT));
        }
        json_decref(row);
        nanosleep(&(struct timespec){.tv_nsec = 2000000}, NULL);
    }
}

static void until_logged(rig *r, const char *name, const char *words)
{
    for (uint64_t until = hth_real_after(LIMIT_NS); !logged(&r->f, name, words);) {
        assert_true(hth_real_ns() < until);
        nanosleep(&(struct timespec){.tv_nsec = 2000000}, NULL);
    }
}

static void goes_on(rig *r, const char *name)
{
    until_step(&r->f, name, step_of(&r->f, name) + 20);
}

// A paused job keeps nothing on any device: another one begins, and goes on when the first one is
// resumed, which waits for it.
static void paused(void **state)
{
    rig r;
    job one, two;
    rig_open(&r, 1.5);
    job_start(&r, &one, "one", "all", ENDLESS);
    goes_on(&r, "one");
    change(&r, "pause", "one");
    job_start(&r, &two, "two", "all", ENDLESS);
    goes_on(&r, "two");
    change(&r, "resume", "one");
    until_state(&r, "one", "queued", "of device memory");
    goes_on(&r, "two");
    job_cancel(&r, &two, "two");
    goes_on(&r, "one");
    job_cancel(&r, &one, "one");
    rig_close(&r);
}

// Two groups begin in opposite orders, as jobs of one device and priorities have it: the younger
// one gives its memory back, whether that is its lead's or another member's.
static void crossed(rig *r, const char *on, const char *waits)
{
    job first, one, two;
    job_start(r, &first, "first", "cpu:1", ENDLESS);
    until_state(r, "first", "running", "");
    job_start(r, &one, "one", "all", ENDLESS);
    until_state(r, "one", "running", ""); // its lead
    job_start(r, &two, "two", on, ENDLESS ",\"priority\":9");
    if (strncmp(on, "cpu:1", 5) == 0) {
        until_state(r, "two", "queued", waits);
        change(r, "cancel", "first");
        until_state(r, "two", "running", "");
        until_logged(r, "two", "gave its memory back to job 'one', which is older");
    } else {
        until_state(r, "two", "queued", waits);
        change(r, "cancel", "first");
    }
    assert_int_equal(call_wait(&first.c), HTH_ECANCELED);
    free(first.text);
    goes_on(r, "one");
    json_int_t step = step_of(&r->f, "two");
    goes_on(r, "one");
    assert_int_equal(step_of(&r->f, "two"), step);
    job_cancel(r, &one, "one");
    goes_on(r, "two");
    job_cancel(r, &two, "two");
}

static void opposite(void **state)
{
    rig r;
    rig_open(&r, 1.5);
    crossed(&r, "cpu:1,cpu:0", "of device memory");
    crossed(&r, "cpu:0,cpu:1", "of device memory");
    rig_close(&r);
}

// The same where there is memory for all, but a tenant may have one job at work on a device.
static void limited(void **state)
{
    rig r;
    char path[100];
    rig_open(&r, 5);
    snprintf(path, sizeof path, "%s/tenants", r.f.dir);
    FILE *file = fopen(path, "w");
    assert_non_null(file);
    fputs("alice jobs=1\n", file);
    fclose(file);
    assert_ok(hth_setting_set("tenant.file", path));
    json_decref(told(&r.f, "tenants", "{\"read\":true}"));
    as_tenant = "alice";
    crossed(&r, "cpu:1,cpu:0", "tenant 'alice' has 1 of 1 jobs running");
    as_tenant = NULL;
    hth_setting_reset();
    rig_close(&r);
}

// A lead that has made steps gives its memory back with a checkpoint, from which it goes on.
static void resumed(void **state)
{
    rig r;
    job older, younger, single;
    rig_open(&r, 1.5);
    job_start(&r, &older, "older", "all", ENDLESS);
    goes_on(&r, "older");
    change(&r, "pause", "older");
    job_start(&r, &younger, "younger", "all", "\"epochs\":100");
    goes_on(&r, "younger");
    change(&r, "pause", "younger");
    job_start(&r, &single, "single", "cpu:1", ENDLESS);
    goes_on(&r, "single");
    change(&r, "resume", "younger");
    until_state(&r, "younger", "running", "");
    json_int_t step = step_of(&r.f, "younger");
    assert_true(step >= 20);
    change(&r, "resume", "older");
    until_logged(&r, "younger", "gave its memory back to job 'older'");
    until_state(&r, "younger", "queued", "");
    assert_int_equal(step_of(&r.f, "younger"), step);
    until_state(&r, "older", "running", "");
    job_cancel(&r, &single, "single");
    goes_on(&r, "older");
    assert_int_equal(step_of(&r.f, "younger"), step);
    job_cancel(&r, &older, "older");
    json_t *doc = finished(&younger.c);
    close_losses("younger", r.whole, doc);
    json_decref(doc);
    free(younger.text);
    rig_close(&r);
}

// A member that waits for memory is answered when its job ends: nobody has their region then.
static void ended(void **state)
{
    rig r;
    job first, one;
    rig_open(&r, 1.5);
    job_start(&r, &first, "first", "cpu:1", ENDLESS);
    goes_on(&r, "first");
    int open_fds = test_open_fds();
    job_start(&r, &one, "one", "all", ENDLESS);
    until_state(&r, "one", "running", "");
    assert_true(test_open_fds() > open_fds);
    job_cancel(&r, &one, "one");
    for (uint64_t until = hth_real_after(LIMIT_NS); test_open_fds() > open_fds;) {
        assert_true(hth_real_ns() < until);
        nanosleep(&(struct timespec){.tv_nsec = 2000000}, NULL);
    }
    job_cancel(&r, &first, "first");
    rig_close(&r);
}

// The members of a job that is to follow another one take no memory before: the other one may need
// it, and would wait for what waits for it.
static void followed(void **state)
{
    rig r;
    job first, second, one, two;
    rig_open(&r, 1.5);
    job_start(&r, &first, "first", "cpu:1", ENDLESS);
    goes_on(&r, "first");
    job_start(&r, &one, "one", "all", ENDLESS ",\"after\":\"first\"");
    until_state(&r, "one", "waiting", "waits for job 'first'");
    change(&r, "pause", "first");
    job_start(&r, &second, "second", "cpu:1", "\"epochs\":100");
    until_state(&r, "second", "running", "");
    job_start(&r, &two, "two", "all", "\"epochs\":100,\"after\":\"second\"");
    json_decref(finished(&second.c));
    json_t *doc = finished(&two.c);
    close_losses("two", r.whole, doc);
    json_decref(doc);
    change(&r, "resume", "first");
    goes_on(&r, "first");
    job_cancel(&r, &first, "first");
    assert_int_equal(call_wait(&one.c), HTH_ECANCELED);
    assert_non_null(strstr(one.c.r.detail, "which it was to follow, was canceled"));
    free(second.text);
    free(two.text);
    free(one.text);
    rig_close(&r);
}

static _Atomic uint64_t ahead_ns;

static uint64_t leaping(void *ctx)
{
    (void)ctx;
    return hth_real_ns() + ahead_ns;
}

// A time limit begins with the first round, however long members are waited for before it.
static void not_timed_while_members_wait(void **state)
{
    rig r;
    job first, one;
    rig_open(&r, 1.5);
    hth_clock_inject(leaping, NULL);
    job_start(&r, &first, "first", "cpu:1", ENDLESS);
    goes_on(&r, "first");
    job_start(&r, &one, "one", "all", ENDLESS ",\"time-limit\":100000");
    until_state(&r, "one", "running", ""); // its lead
    ahead_ns += (uint64_t)200000 * 1000000000u;
    job_cancel(&r, &first, "first");
    goes_on(&r, "one");
    ahead_ns += (uint64_t)200000 * 1000000000u;
    assert_int_equal(call_wait(&one.c), HTH_ETIMEDOUT);
    assert_non_null(strstr(one.c.r.detail, "time limit: 100000 s are over after step"));
    free(one.text);
    rig_close(&r);
    hth_clock_inject(NULL, NULL);
}

// A lead that waits for memory is told at once that another device refuses the job.
static void refused_while_queued(void **state)
{
    rig r;
    job first, one;
    char devices[120];
    rig_open(&r, 1.5);
    double bytes = json_number_value(json_object_get(r.whole, "peak_bytes"));
    hth_engine_close(r.f.engine);
    snprintf(devices, sizeof devices, "cpu:0,mem=%.0fKiB,threads=1 cpu:1,mem=%.0fKiB,threads=1",
             bytes / 8 / 1024, bytes * 1.5 / 1024);
    engines_open(&r.f, devices, false);
    job_start(&r, &first, "first", "cpu:1", ENDLESS);
    goes_on(&r, "first");
    job_start(&r, &one, "one", "cpu:1,cpu:0", ENDLESS);
    assert_int_not_equal(call_wait(&one.c), HTH_OK);
    assert_non_null(strstr(one.c.r.detail, "device cpu:0: "));
    goes_on(&r, "first"); // it waited for that all the time
    free(one.text);
    job_cancel(&r, &first, "first");
    rig_close(&r);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(paused),
        cmocka_unit_test(opposite),
        cmocka_unit_test(limited),
        cmocka_unit_test(resumed),
        cmocka_unit_test(ended),
        cmocka_unit_test(followed),
        cmocka_unit_test(not_timed_while_members_wait),
        cmocka_unit_test(refused_while_queued),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
