// SPDX-License-Identifier: Apache-2.0
// The records of jobs are as many as HTH_JOB_INDEX: the record of one that has not ended stays,
// however many others are submitted after it.
#include "base/test.h"

#include "runtime/job_index.h"

#include <stdio.h>
#include <string.h>

static char dir[64];

static int setup(void **state)
{
    strcpy(dir, "/tmp/hearth-jobs-XXXXXX");
    return mkdtemp(dir) == NULL;
}

static int teardown(void **state)
{
    return test_remove(dir);
}

// round_later has the next number take the place of number `id`, after a whole round.
static void round_later(hth_store *store, uint64_t id)
{
    char text[24];
    snprintf(text, sizeof text, "%llu", (unsigned long long)id + HTH_JOB_INDEX - 1);
    assert_ok(hth_store_text_put(store, "train/job/last", text));
}

static void of_a_round(void **state)
{
    hth_store *s;
    uint64_t lives, ended, refused, id;
    json_t *record;
    assert_ok(hth_store_open(dir, true, false, &s));
    assert_ok(hth_job_index_add(s, "lives", "bob", &lives));
    assert_ok(
        hth_job_index_set(s, lives, json_pack("{s:i, s:s}", "attempts", 1, "state", "running")));
    assert_ok(hth_job_index_add(s, "ended", "bob", &ended));
    assert_ok(hth_job_index_set(
        s, ended,
        json_pack("{s:i, s:I}", "attempts", 1, "ended", (json_int_t)hth_job_index_now())));
    assert_ok(hth_job_index_add(s, "refused", "bob", &refused)); // never was in a queue
    round_later(s, lives);
    assert_ok(hth_job_index_add(s, "new", "alice", &id));
    assert_int_equal(id, ended + HTH_JOB_INDEX);
    assert_ok(hth_job_index_add(s, "newer", "alice", &id));
    assert_int_equal(id, refused + HTH_JOB_INDEX);
    assert_ok(hth_job_index_get(s, lives, &record));
    assert_string_equal(json_string_value(json_object_get(record, "job")), "lives");
    json_decref(record);
    assert_int_equal(hth_job_index_get(s, ended, &record), HTH_ENOENT);
    assert_ok(hth_job_index_named(s, "lives", UINT64_MAX, &id));
    assert_int_equal(id, lives);
    assert_ok(hth_job_index_named(s, "new", UINT64_MAX, &id));
    assert_int_equal(id, ended + HTH_JOB_INDEX);
    assert_int_equal(hth_job_index_named(s, "ended", UINT64_MAX, &id), HTH_ENOENT);
    hth_store_close(s);
}

// checkpoint stores one as a job of `tenant` makes it, NULL: of before jobs had owners.
static void checkpoint(hth_store *store, const char *job, int id, const char *tenant)
{
    char name[HTH_CHECKPOINT_NAME];
    hth_put_result result;
    json_t *doc = json_pack("{s:{s:s, s:s, s:b, s:i, s:s*}}", "job", "model", "digits", "save-as",
                            job, "named", 1, "id", id, "tenant", tenant);
    char *meta = json_dumps(doc, JSON_COMPACT);
    snprintf(name, sizeof name, "%s" HTH_CHECKPOINT_TAIL, job);
    assert_ok(hth_store_put(store, name, "none", 4, meta, NULL, 0, NULL, NULL, &result));
    free(meta);
    json_decref(doc);
}

// begins tells which job "resume" of a model, or of a name, goes on with, and its number; "": none.
static void begins(hth_store *store, const char *as, const char *tenant, bool admin,
                   const char *want, uint64_t number)
{
    char job[HTH_CHECKPOINT_JOB];
    uint64_t id, last;
    json_t *args = json_pack("{s:s, s:b, s:s*}", "model", "digits", "resume", 1, "save-as", as);
    assert_ok(hth_job_index_take(store, &last));
    assert_ok(hth_job_index_begin(store, args, tenant, admin, job, &id));
    if (want[0] != 0) {
        assert_string_equal(job, want);
        assert_int_equal(id, number);
    } else {
        assert_int_equal(id, last + 1); // a number of its own: it has no checkpoint
    }
    json_decref(args);
}

// Without a job's name the caller's own last job of the model is meant, even if others trained it
// later.
static void last_is_ones_own(void **state)
{
    hth_store *s;
    assert_ok(hth_store_open(dir, true, false, &s));
    checkpoint(s, "digits-job1", 1, "alice");
    checkpoint(s, "digits-job2", 2, "alice");
    checkpoint(s, "digits-job3", 3, "bob");
    begins(s, NULL, "alice", false, "digits-job2", 2);
    begins(s, NULL, "bob", false, "digits-job3", 3);
    begins(s, NULL, "carol", false, "", 0);
    begins(s, NULL, "root", true, "", 0); // .. also of administrators
    begins(s, "digits-job2", "alice", false, "digits-job2", 2);
    begins(s, "digits-job2", "bob", false, "", 0);
    checkpoint(s, "digits-job4", 4, NULL);
    begins(s, NULL, "root", true, "digits-job4", 4);
    begins(s, NULL, "alice", false, "digits-job2", 2);
    hth_store_close(s);
}

static void state_is(hth_store *store, uint64_t id, const char *state, bool ended)
{
    json_t *record;
    assert_ok(hth_job_index_get(store, id, &record));
    assert_string_equal(json_string_value(json_object_get(record, "state")), state);
    assert_int_equal(json_is_integer(json_object_get(record, "ended")), ended);
    json_decref(record);
}

static int n_lost;

static void lost(hth_store *store, const json_t *record)
{
    assert_string_equal(json_string_value(json_object_get(record, "job")), "none");
    state_is(store, 3, "canceled", true);
    n_lost++;
}

// A server that was killed has told nobody how its jobs ended. Those that a checkpoint is of go on;
// one of an older job of the same name is not theirs.
static void jobs_without_checkpoints_are_lost(void **state)
{
    hth_store *s;
    uint64_t id;
    static const char *const names[] = {"kept", "kept", "none", "ended", "before"};
    assert_ok(hth_store_open(dir, true, false, &s));
    for (uint64_t i = 0; i < sizeof names / sizeof *names; i++) {
        assert_ok(hth_job_index_add(s, names[i], "alice", &id));
        assert_int_equal(id, i + 1);
    }
    checkpoint(s, "kept", 1, "alice");
    hth_put_result result;
    char meta[] = "{\"job\":{\"save-as\":\"before\"}}"; // when jobs had no numbers
    assert_ok(hth_store_put(s, "before" HTH_CHECKPOINT_TAIL, "none", 4, meta, NULL, 0, NULL, NULL,
                            &result));
    assert_ok(hth_job_index_set(s, 4, json_pack("{s:s, s:i}", "state", "failed", "ended", 1)));
    assert_ok(hth_job_index_set(s, 3, json_pack("{s:i}", "attempts", 1))); // it was in a queue
    n_lost = 0;
    assert_ok(hth_job_index_lost(s, lost));
    assert_int_equal(n_lost, 1);
    state_is(s, 1, "waiting", false);
    state_is(s, 2, "canceled", true);
    state_is(s, 3, "canceled", true);
    state_is(s, 4, "failed", true);
    state_is(s, 5, "waiting", false);
    hth_store_close(s);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(of_a_round, setup, teardown),
        cmocka_unit_test_setup_teardown(jobs_without_checkpoints_are_lost, setup, teardown),
        cmocka_unit_test_setup_teardown(last_is_ones_own, setup, teardown),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
