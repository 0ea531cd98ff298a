// SPDX-License-Identifier: Apache-2.0
#include "runtime/content/dataset_own.h"

#include "modelstore/hold.h"
#include "runtime/job_index.h"
#include "tests/rig/record_damage.h"
#include "tests/rig/store_rig.h"

#define HOUR ((uint64_t)3600 * 1000000000u)

static float values[32];

static hth_err put(const char *name, const char *tenant)
{
    hth_put_result r;
    const hth_put_tensor t = {
        .name = "x", .dtype = HTH_DT_F32, .shape = {2, {8, 4}}, .data = values, .bytes = 128};
    return hth_dataset_store(store, &(hth_dataset_put){name, tenant, NULL, &t, 1, HTH_TENANT_NEVER},
                             NULL, NULL, &r);
}

static size_t count(void)
{
    json_t *doc;
    assert_ok(hth_dataset_list(store, (hth_dataset_who){NULL, true}, &doc));
    size_t n = json_array_size(json_object_get(doc, "datasets"));
    json_decref(doc);
    return n;
}

static void names_of_their_own(void **state)
{
    char name[HTH_DATASET_OWN], other[HTH_DATASET_OWN];
    hth_dataset_own_name(7, "data", name);
    assert_true(hth_dataset_own_is(name));
    hth_dataset_own_name(7, "eval", other);
    assert_string_not_equal(name, other);
    hth_dataset_own_name(8, "data", other);
    assert_string_not_equal(name, other);
    assert_false(hth_dataset_own_is("upload-"));
    assert_false(hth_dataset_own_is("upload-mine"));
    assert_false(hth_dataset_own_is("upload-0123456789abcdef0123456"));
    assert_false(hth_dataset_own_is("upload-0123456789abcdef0123456X"));
    assert_false(hth_dataset_own_is("digits"));
}

// Of those that clients left behind, nothing is kept that is old, unless a job needs it.
static void orphans_expire(void **state)
{
    char used[HTH_DATASET_OWN], needed[HTH_DATASET_OWN], left[HTH_DATASET_OWN], meta[200];
    hth_manifest m;
    hth_put_result r;
    int fd;
    uint64_t now = hth_job_index_now();
    hth_dataset_own_name(1, "data", used);
    hth_dataset_own_name(2, "data", needed);
    hth_dataset_own_name(3, "data", left);
    assert_ok(put(used, "alice"));
    assert_ok(put(needed, "alice"));
    assert_ok(put(left, "bob"));
    assert_ok(put("named", "bob"));
    assert_ok(hth_dataset_hold(store, used, "alice", &m, &fd));
    hth_manifest_fini(&m);
    snprintf(meta, sizeof meta,
             "{\"job\":{\"tenant\":\"alice\",\"data\":{\"dataset\":\"%s\",\"own\":true}}}", needed);
    assert_ok(hth_store_put(store, "job.checkpoint", "", 0, meta, NULL, 0, NULL, NULL, &r));
    assert_ok(hth_dataset_own_expire(store, now, HOUR)); // they are young
    assert_int_equal(count(), 4);
    assert_ok(hth_dataset_own_expire(store, now + 2 * HOUR, HOUR));
    assert_int_equal(count(), 3);
    assert_err(hth_dataset_get(store, left, "bob", &m), HTH_ENOENT, "no dataset");
    hth_store_let_go(fd);
    assert_ok(hth_store_rm(store, "job.checkpoint", 0));
    assert_ok(hth_dataset_own_expire(store, now + 2 * HOUR, HOUR));
    assert_int_equal(count(), 1);
    assert_ok(hth_dataset_remove(store, "named", "bob", (hth_dataset_who){NULL, true}));
}

static uint64_t stored_ns(const char *name)
{
    hth_manifest m;
    assert_ok(hth_dataset_get(store, name, "alice", &m));
    assert_int_equal(m.version, 1);
    uint64_t ns = m.created_ns;
    hth_manifest_fini(&m);
    return ns;
}

// Who stores the same again, for a job that is still to come, has it for another hour; what has a
// name keeps its age.
static void stored_again_they_stay(void **state)
{
    char name[HTH_DATASET_OWN], version[HTH_DATASET_NAME];
    hth_dataset_own_name(12, "data", name);
    snprintf(version, sizeof version, "%s@alice" HTH_DATASET_TAIL, name);
    assert_ok(put(name, "alice"));
    assert_ok(put("named", "alice"));
    uint64_t first = stored_ns(name), named = stored_ns("named");
    assert_ok(put(name, "alice"));
    assert_ok(put("named", "alice"));
    assert_true(stored_ns(name) > first);
    assert_true(stored_ns("named") == named);
    assert_ok(hth_store_verify(store, version, 0));
    assert_ok(hth_dataset_own_expire(store, first + HOUR, HOUR));
    assert_int_equal(count(), 2);
    assert_ok(hth_dataset_own_expire(store, stored_ns(name) + HOUR, HOUR));
    assert_int_equal(count(), 1);
    assert_ok(hth_dataset_remove(store, "named", "alice", (hth_dataset_who){NULL, true}));
}

// All go in one pass, although nothing can be collected while a model's record is damaged.
static void all_expire_beside_damage(void **state)
{
    char name[HTH_DATASET_OWN];
    hth_put_result r;
    for (uint64_t job = 8; job < 11; job++) {
        hth_dataset_own_name(job, "data", name);
        assert_ok(put(name, "alice"));
    }
    assert_ok(hth_store_put(store, "other", "graph", 5, "{\"mark\": \"is damaged soon\"}", NULL, 0,
                            NULL, NULL, &r));
    record_damage(store_rig_path, "is damaged soon");
    assert_ok(hth_dataset_own_expire(store, hth_job_index_now() + 2 * HOUR, HOUR));
    assert_int_equal(count(), 0);
    assert_ok(hth_store_rm(store, "other", 0));
}

// Jobs that wait for hours, and have no checkpoint, have their data when they begin; the last one
// that ends removes them. Nobody else can, or replace them.
static void who_waits_has_them(void **state)
{
    char own[HTH_DATASET_OWN], left[HTH_DATASET_OWN];
    int fd[3], none;
    uint64_t now = hth_job_index_now();
    hth_dataset_own_name(6, "data", own);
    hth_dataset_own_name(7, "data", left);
    assert_ok(put(own, "alice"));
    assert_ok(put(left, "alice"));
    assert_ok(put("named", "alice"));
    assert_ok(hth_dataset_claim(store, own, "alice", &fd[0]));
    assert_ok(hth_dataset_claim(store, "named", "alice", &fd[1]));
    assert_ok(hth_dataset_claim(store, own, "alice", &fd[2])); // another job, with the same data
    assert_err(hth_dataset_claim(store, "nothing", "alice", &none), HTH_ENOENT, "no dataset");
    assert_int_equal(none, -1);
    assert_err(hth_dataset_claim(store, own, "bob", &none), HTH_ENOENT, "no dataset"); // not his
    assert_ok(hth_dataset_own_expire(store, now + 2 * HOUR, HOUR));
    assert_int_equal(count(), 2);
    assert_err(hth_dataset_remove(store, "named", "alice", (hth_dataset_who){NULL, true}),
               HTH_EBUSY, "a job waits to train on dataset 'named': `hearth jobs` lists it");
    values[0]++;
    assert_err(put("named", "alice"), HTH_EBUSY, "a job waits to train on dataset 'named'");
    values[0]--;
    hth_dataset_unclaim(fd[0]);
    hth_dataset_own_drop(store, own, "alice"); // the first job has ended
    assert_int_equal(count(), 2);
    hth_dataset_unclaim(fd[2]);
    hth_dataset_own_drop(store, own, "alice");
    assert_int_equal(count(), 1);
    hth_dataset_unclaim(fd[1]);
    hth_dataset_unclaim(-1);
    assert_ok(hth_dataset_remove(store, "named", "alice", (hth_dataset_who){NULL, true}));
    assert_int_equal(count(), 0);
}

static void they_go_with_their_job(void **state)
{
    char name[HTH_DATASET_OWN];
    hth_dataset_own_name(4, "eval", name);
    assert_ok(put(name, "alice"));
    assert_ok(put("mine", "alice"));
    json_t *args = json_pack("{s:{s:s}, s:{s:s, s:b}}", "data", "dataset", "mine", "eval",
                             "dataset", name, "own", 1);
    hth_fail(HTH_EINVAL, "what went wrong before");
    hth_dataset_drop_own(store, args, "bob"); // not his
    assert_int_equal(count(), 2);
    hth_dataset_drop_own(store, args, "alice");
    assert_int_equal(count(), 1);
    assert_string_equal(hth_err_detail(), "what went wrong before");
    json_decref(args);
    assert_ok(hth_dataset_remove(store, "mine", "alice", (hth_dataset_who){NULL, true}));
}

static hth_err expire_once(void)
{
    char name[HTH_DATASET_OWN];
    hth_dataset_own_name(5, "data", name);
    HTH_TRY(put(name, "alice"));
    return hth_dataset_own_expire(store, hth_job_index_now() + 2 * HOUR, HOUR);
}

static void allocations_fail_cleanly(void **state)
{
    FAULT_LOOP(expire_once());
    assert_ok(expire_once()); // a list leaves out what it had no memory to read
    assert_int_equal(count(), 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(names_of_their_own),      cmocka_unit_test(orphans_expire),
        cmocka_unit_test(stored_again_they_stay),  cmocka_unit_test(all_expire_beside_damage),
        cmocka_unit_test(who_waits_has_them),      cmocka_unit_test(they_go_with_their_job),
        cmocka_unit_test(allocations_fail_cleanly)};
    return cmocka_run_group_tests(tests, store_rig_open, store_rig_close);
}
