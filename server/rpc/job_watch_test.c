// SPDX-License-Identifier: Apache-2.0
// The table of events and of those that wait for them: numbers, gaps, times, cancellation, limits.
#include "server/rpc/job_watch.h"

#include "base/alloc.h"
#include "base/clock.h"
#include "base/settings.h"
#include "base/test.h"

#include <jansson.h>

#include <pthread.h>
#include <stdio.h>
#include <string.h>

#define NEVER    UINT64_MAX
#define ALL_JOBS 256 // that the table keeps

static _Atomic uint64_t clock_now;

static uint64_t clock_read(void *ctx)
{
    return atomic_load(&clock_now);
}

// A request that waits, and what it was answered.
typedef struct asked {
    hth_job_waiter w;
    atomic_int canceled;
    bool answered; // under answers_lock
    hth_err err;
    char detail[200];
    char *json;
} asked;

static pthread_mutex_t answers_lock = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t answers_more = PTHREAD_COND_INITIALIZER;
static int answers_due; // requests that wait; under answers_lock

static void answer(hth_job_waiter *waiter, hth_err err, char *json)
{
    asked *a = (asked *)waiter;
    a->err = err;
    snprintf(a->detail, sizeof a->detail, "%s", err != HTH_OK ? hth_err_detail() : "");
    a->json = json;
    pthread_mutex_lock(&answers_lock);
    a->answered = true;
    answers_due--;
    pthread_cond_signal(&answers_more);
    pthread_mutex_unlock(&answers_lock);
}

static hth_job_watches *table;

static int setup(void **state)
{
    hth_setting_reset();
    atomic_store(&clock_now, 1000000000);
    hth_clock_inject(clock_read, NULL);
    assert_ok(hth_job_watches_open(&table));
    return 0;
}

static int teardown(void **state)
{
    hth_job_watches_stop(table);
    pthread_mutex_lock(&answers_lock);
    while (answers_due > 0) {
        pthread_cond_wait(&answers_more, &answers_lock);
    }
    pthread_mutex_unlock(&answers_lock);
    hth_job_watches_close(table);
    hth_clock_inject(NULL, NULL);
    hth_setting_reset();
    return 0;
}

// known has the events of a job kept; returns the number after which they come.
static uint64_t known(const char *name, uint64_t id, const char *tenant)
{
    uint64_t last;
    hth_job_watches_begin(table, name, &last);
    hth_job_watches_end(table, name, id, tenant);
    return last;
}

static hth_err ask_as(asked *a, const char *asks, uint64_t id, uint64_t after, uint64_t end_ns,
                      char **json)
{
    memset(a, 0, sizeof *a);
    a->w = (hth_job_waiter){.id = id,
                            .after = after,
                            .end_ns = end_ns,
                            .tenant = strcmp(asks, "root") != 0 ? asks : NULL,
                            .asks = asks,
                            .canceled = &a->canceled,
                            .answer = answer};
    pthread_mutex_lock(&answers_lock);
    answers_due++;
    pthread_mutex_unlock(&answers_lock);
    hth_err err = hth_job_watches_wait(table, &a->w, json);
    pthread_mutex_lock(&answers_lock);
    answers_due -= err != HTH_OK || *json != NULL; // answered, or refused, at once
    pthread_mutex_unlock(&answers_lock);
    return err;
}

static bool is_answered(asked *a)
{
    pthread_mutex_lock(&answers_lock);
    bool answered = a->answered;
    pthread_mutex_unlock(&answers_lock);
    return answered;
}

static hth_err ask(asked *a, uint64_t id, uint64_t after, uint64_t end_ns, char **json)
{
    return ask_as(a, "alice", id, after, end_ns, json);
}

static void wait_answered(asked *a)
{
    pthread_mutex_lock(&answers_lock);
    while (!a->answered) {
        pthread_cond_wait(&answers_more, &answers_lock);
    }
    pthread_mutex_unlock(&answers_lock);
}

// read checks how many events an answer has, and returns what it goes on from.
static uint64_t read_answer(char *json, size_t n_events, bool missed)
{
    json_t *doc = json_loads(json, 0, NULL);
    assert_non_null(doc);
    assert_int_equal(json_array_size(json_object_get(doc, "events")), n_events);
    assert_int_equal(json_is_true(json_object_get(doc, "missed")), missed);
    uint64_t next = (uint64_t)json_integer_value(json_object_get(doc, "next"));
    json_decref(doc);
    hth_free(json);
    return next;
}

static void test_events(void **state)
{
    asked a;
    char *json;
    uint64_t last = known("net", 7, "alice");
    hth_job_watches_event(table, "net", "{\"step\":1,\"loss\":0.123456789}", 1, 9);
    hth_job_watches_event(table, "net2", "{\"step\":1}", 1,
                          9); // another one's, which nobody watches
    hth_job_watches_event(table, "net", "{\"state\":\"paused\"}", 0, 1);
    assert_ok(ask(&a, 7, last, NEVER, &json));
    assert_non_null(json);
    assert_non_null(
        strstr(json, "\"done\":1,\"total\":9,\"what\":{\"step\":1,\"loss\":0.123456789}"));
    last = read_answer(json, 2, false);
    assert_ok(ask(&a, 7, last, NEVER, &json)); // waits
    assert_null(json);
    assert_int_equal(hth_job_watches_waiting(table), 1);
    hth_job_watches_event(table, "net", "{\"step\":2}", 2, 9);
    wait_answered(&a);
    assert_int_equal(a.err, HTH_OK);
    assert_true(read_answer(a.json, 1, false) > last);
}

// Whoever has no business with a job learns nothing, and does not wait.
static void test_strangers(void **state)
{
    asked a;
    char *json;
    uint64_t last = known("net", 7, "bob");
    assert_int_equal(ask(&a, 7, last, NEVER, &json), HTH_ENOENT);
    assert_int_equal(ask(&a, 8, last, NEVER, &json), HTH_ENOENT);
    assert_int_equal(ask(&a, 0, last, NEVER, &json), HTH_ENOENT);
    a.w.tenant = NULL; // an administrator
    a.w.id = 7;
    a.w.end_ns = 0;
    assert_ok(hth_job_watches_wait(table, &a.w, &json));
    read_answer(json, 0, false);
    uint64_t again;
    hth_job_watches_begin(table, "no job", &again);
    hth_job_watches_end(table, "no job", 0, "");
    assert_int_equal(ask(&a, 0, again, NEVER, &json), HTH_ENOENT);
}

// The last HTH_JOB_EVENTS are kept: who is slower is told so, and gets those.
static void test_missed(void **state)
{
    asked a;
    char *json, text[40];
    uint64_t last = known("net", 7, "alice");
    for (int i = 1; i <= HTH_JOB_EVENTS + 1; i++) {
        snprintf(text, sizeof text, "{\"step\":%d}", i);
        hth_job_watches_event(table, "net", text, (uint64_t)i, 999);
    }
    assert_ok(ask(&a, 7, last, NEVER, &json));
    assert_null(strstr(json, "\"what\":{\"step\":1}"));
    last = read_answer(json, HTH_JOB_EVENTS, true);
    assert_ok(ask(&a, 7, last - 1, NEVER, &json));
    read_answer(json, 1, false);
    hth_job_watches_event(table, "net", "no JSON", 1, 999); // an engine's process has gone mad
    assert_ok(ask(&a, 7, last, NEVER, &json));
    last = read_answer(json, 0, true);
    assert_ok(ask(&a, 7, last, 0, &json));
    read_answer(json, 0, false);
    assert_ok(ask(&a, 7, last + 1000, NEVER, &json)); // of another life of the server
    read_answer(json, 0, true);
}

// Another job makes the same model: who waits for the one before is told to ask.
static void test_replaced(void **state)
{
    asked a;
    char *json;
    uint64_t last = known("net", 7, "alice");
    assert_ok(ask(&a, 7, last, NEVER, &json));
    assert_null(json);
    known("net", 9, "alice");
    wait_answered(&a);
    read_answer(a.json, 0, true);
    assert_int_equal(ask(&a, 7, last, NEVER, &json), HTH_ENOENT);
    known("net", 8, "alice"); // asked for late
    assert_ok(ask(&a, 9, last, 0, &json));
    read_answer(json, 0, false);
}

// .. and whoever has that one learns nothing of the one before, whatever it says that it has heard.
static void test_replaced_by_another(void **state)
{
    asked a;
    char *json;
    uint64_t last = known("net", 7, "alice");
    hth_job_watches_event(table, "net", "{\"state\":\"failed\",\"why\":\"hers\"}", 1, 9);
    hth_job_watches_event(table, "net", "{\"step\":2}", 2, 9);
    known("net", 9, "bob");
    assert_ok(ask_as(&a, "bob", 9, last, 0, &json));
    assert_null(strstr(json, "hers"));
    last = read_answer(json, 0, true);
    hth_job_watches_event(table, "net", "{\"step\":1}", 1, 9);
    assert_ok(ask_as(&a, "bob", 9, 0, 0, &json));
    read_answer(json, 1, true);
    assert_ok(ask_as(&a, "bob", 9, last, 0, &json));
    read_answer(json, 1, false);
    known("net", 9, "bob"); // the same one: its events stay
    assert_ok(ask_as(&a, "bob", 9, last, 0, &json));
    read_answer(json, 1, false);
}

static void test_times(void **state)
{
    asked a, b;
    char *json;
    uint64_t last = known("net", 7, "alice");
    assert_ok(ask(&a, 7, last, atomic_load(&clock_now) + 5, &json));
    assert_ok(ask(&b, 7, last, NEVER, &json));
    atomic_fetch_add(&clock_now, 5);
    hth_job_watches_look(table);
    wait_answered(&a);
    assert_int_equal(read_answer(a.json, 0, false), last);
    assert_false(is_answered(&b));
    atomic_store(&b.canceled, 1);
    hth_job_watches_look(table);
    wait_answered(&b);
    assert_int_equal(b.err, HTH_ECANCELED);
    assert_ok(ask(&a, 7, last, NEVER, &json));
    hth_job_watches_stop(table);
    wait_answered(&a);
    assert_int_equal(a.err, HTH_ECANCELED);
    assert_non_null(strstr(a.detail, "the server is stopping"));
    assert_err(ask(&a, 7, last, NEVER, &json), HTH_ECANCELED, "the server is stopping");
}

static void test_limits(void **state)
{
    asked a, b;
    char *json, name[20];
    uint64_t last = known("net", 7, "alice");
    assert_ok(hth_setting_set("limits.watches", "1"));
    assert_ok(ask(&a, 7, last, NEVER, &json));
    assert_err(ask(&b, 7, last, NEVER, &json), HTH_EBUSY, "limits.watches");
    assert_ok(ask(&b, 7, last, 0, &json)); // what need not wait is answered
    read_answer(json, 0, false);
    for (int i = 0; i < 2 * ALL_JOBS; i++) { // what is waited for is not forgotten
        snprintf(name, sizeof name, "job%d", i);
        known(name, (uint64_t)i + 100, "alice");
    }
    hth_job_watches_event(table, "net", "{}", 1, 1);
    wait_answered(&a);
    read_answer(a.json, 1, false);
    assert_int_equal(ask(&b, 100, last, 0, &json), HTH_ENOENT); // the oldest one is
    assert_ok(ask(&b, 2 * ALL_JOBS + 99, last, 0, &json));
    hth_free(json);
}

// However many watches a tenant has, there are some for the next one; who may watch others' jobs
// has them as its own.
static void test_shares(void **state)
{
    static asked of[6];
    char *json;
    uint64_t hers = known("hers", 7, "alice"), his = known("his", 8, "bob");
    assert_ok(hth_setting_set("limits.watches", "6"));
    for (int i = 0; i < 3; i++) {
        assert_ok(ask(&of[i], 7, hers, NEVER, &json));
    }
    assert_err(ask(&of[3], 7, hers, NEVER, &json), HTH_EBUSY,
               "tenant 'alice' has 3 watches of training jobs, and 3 are free (limits.watches = "
               "6): it may have as many as it leaves free");
    assert_ok(ask_as(&of[3], "bob", 8, his, NEVER, &json));
    assert_ok(ask_as(&of[4], "root", 7, hers, NEVER, &json));
    assert_err(ask_as(&of[5], "root", 8, his, NEVER, &json), HTH_EBUSY, "tenant 'root' has 1");
    hth_job_watches_event(table, "hers", "{}", 1, 1);
    for (int i = 0; i < 5; i++) {
        if (i != 3) {
            wait_answered(&of[i]);
            hth_free(of[i].json);
        }
    }
    assert_ok(ask_as(&of[5], "bob", 8, his, NEVER, &json)); // they went back
    hth_job_watches_event(table, "his", "{}", 1, 1);
    wait_answered(&of[3]);
    hth_free(of[3].json);
    wait_answered(&of[5]);
    hth_free(of[5].json);
}

// Without memory an event is missed, and an answer is an error.
static hth_err fail_events(hth_job_watches *watches)
{
    asked a = {.w = {.id = 17,
                     .tenant = "alice",
                     .asks = "alice",
                     .canceled = &a.canceled,
                     .answer = answer}};
    char *json;
    hth_job_watches_begin(watches, "fails", &a.w.after);
    hth_job_watches_end(watches, "fails", 17, "alice");
    hth_job_watches_event(watches, "fails", "{\"step\":1}", 1, 9);
    hth_err err = hth_job_watches_wait(watches, &a.w, &json);
    if (err == HTH_ENOENT) { // there was no room for the job
        return HTH_ENOMEM;
    }
    HTH_TRY(err);
    bool whole = strstr(json, "\"step\":1") != NULL;
    assert_true(whole || strstr(json, "\"missed\":true") != NULL);
    hth_free(json);
    return whole ? HTH_OK : HTH_ENOMEM;
}

static hth_err fail_all(void)
{
    hth_job_watches *t;
    HTH_TRY(hth_job_watches_open(&t));
    hth_err err = fail_events(t);
    hth_job_watches_close(t);
    return err;
}

// It has no other table: the thread of one that begins gives memory back, too.
static void test_out_of_memory(void **state)
{
    FAULT_LOOP(fail_all());
}

int main(void)
{
#define T(f) cmocka_unit_test_setup_teardown(f, setup, teardown)
    const struct CMUnitTest tests[] = {
        T(test_events),
        T(test_strangers),
        T(test_missed),
        T(test_replaced),
        T(test_replaced_by_another),
        T(test_times),
        T(test_limits),
        T(test_shares),
        cmocka_unit_test(test_out_of_memory),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
