// SPDX-License-Identifier: Apache-2.0
// Datasets of a store: whose they are, what they cost, what keeps them.
#include "client/safetensors.h"
#include "modelstore/file.h"
#include "modelstore/hold.h"
#include "runtime/catalog.h"
#include "runtime/content/dataset_index.h"
#include "runtime/job_index.h"
#include "tests/rig/record_damage.h"
#include "tests/rig/store_rig.h"

#include <errno.h>
#include <fcntl.h>
#include <unistd.h>

#define FAULTS 120 // more than a put has allocations, or operations on files

#define NEEDS_N "{\"job\":{\"tenant\":\"alice\",\"data\":{\"dataset\":\"n\"}}}"

static float values[64];

static hth_err put(const char *name, const char *tenant, float first, int samples, int64_t most,
                   hth_put_result *result)
{
    values[0] = first;
    const hth_put_tensor t[] = {{.name = "x",
                                 .dtype = HTH_DT_F32,
                                 .shape = {2, {samples, 4}},
                                 .data = values,
                                 .bytes = (size_t)samples * 16},
                                {.name = "y",
                                 .dtype = HTH_DT_F32,
                                 .shape = {1, {samples}},
                                 .data = values + 1,
                                 .bytes = (size_t)samples * 4}};
    json_t *about = json_pack("{s:s, s:[s,s]}", "format", "images", "classes", "cat", "dog");
    const hth_dataset_put p = {name, tenant, about, t, 2, most};
    hth_err err = hth_dataset_store(store, &p, NULL, NULL, result);
    json_decref(about);
    return err;
}

static size_t count(hth_dataset_who who)
{
    json_t *doc;
    assert_ok(hth_dataset_list(store, who, &doc));
    size_t n = json_array_size(json_object_get(doc, "datasets"));
    json_decref(doc);
    return n;
}

static void they_belong_to_tenants(void **state)
{
    hth_put_result r;
    hth_manifest m;
    const hth_dataset_who alice = {"alice", false}, bob = {"uid:7", false}, root = {"root", true};
    assert_ok(put("mnist", "alice", 1, 8, HTH_TENANT_NEVER, &r));
    assert_int_equal(r.bytes_new, 8 * 20);
    assert_int_equal(count(alice), 1);
    assert_int_equal(count(bob), 0);
    assert_int_equal(count(root), 1);
    assert_err(hth_dataset_get(store, "mnist", "uid:7", &m), HTH_ENOENT, "no dataset 'mnist'");
    assert_err(hth_dataset_get(store, "mnits", "uid:7", &m), HTH_ENOENT, "'mnits'; `hearth");
    assert_err(hth_dataset_get(store, "mnits", "alice", &m), HTH_ENOENT, "did you mean 'mnist'?");
    assert_err(hth_dataset_remove(store, "mnist", NULL, bob), HTH_ENOENT, "no dataset");
    assert_err(hth_dataset_remove(store, "mnist", "alice", bob), HTH_ENOENT, "no dataset");
    // the same name, and the same content: it costs nothing
    assert_ok(put("mnist", "uid:7", 1, 8, HTH_TENANT_NEVER, &r));
    assert_int_equal(r.bytes_new, 0);
    assert_ok(put("mnist", "alice", 1, 8, HTH_TENANT_NEVER, &r));
    assert_true(r.unchanged && r.bytes_new == 0);
    assert_int_equal(count(root), 2);
    assert_ok(hth_dataset_remove(store, "mnist", "alice", root));
    assert_int_equal(count(alice), 0);
    assert_ok(hth_dataset_get(store, "mnist", "uid:7", &m));
    assert_int_equal(m.n_tensors, 2);
    hth_manifest_fini(&m);
    assert_ok(hth_dataset_remove(store, "mnist", NULL, bob));
}

static void they_are_no_models(void **state)
{
    hth_put_result r;
    char *json;
    assert_ok(put("d", "alice", 1, 4, HTH_TENANT_NEVER, &r));
    assert_true(hth_dataset_is(store, "d@alice.dataset"));
    assert_false(hth_dataset_is(store, "d"));
    assert_ok(hth_catalog_list(store, NULL, &json));
    assert_null(strstr(json, "alice"));
    hth_free(json);
    assert_err(
        hth_catalog_export(store, "d@alice.dataset", "/tmp/never.safetensors", -1, NULL, NULL),
        HTH_ENOENT, "no model");
    assert_err(hth_catalog_remove(store, "d@alice.dataset"), HTH_ENOENT, "no model");
    assert_err(hth_catalog_import(store, "e@alice.dataset", "tests/data/digits/digits.onnx", -1,
                                  NULL, NULL, NULL, &r),
               HTH_EINVAL, "are those of datasets");
    assert_ok(hth_dataset_remove(store, "d", NULL, (hth_dataset_who){"alice", false}));
}

static void quotas_have_numbers(void **state)
{
    hth_put_result r;
    // 237 bytes are the record's: two tensors with their names, and the meta
    assert_err(
        put("a", "alice", 1, 8, 100, &r), HTH_EDENIED,
        "tenant 'alice' has 0 B of models and datasets in the store and may have 100 B (store=, "
        "tenant.file): 397 B more do not fit");
    assert_ok(put("a", "alice", 1, 8, 437, &r));
    assert_err(put("b", "alice", 2, 4, 437, &r), HTH_EDENIED, "has 397 B of models and datasets");
    assert_ok(put("a", "alice", 2, 10, 437, &r)); // in the place of the first
    assert_ok(hth_dataset_remove(store, "a", NULL, (hth_dataset_who){"alice", false}));
}

static void what_is_used_stays(void **state)
{
    hth_put_result r;
    hth_manifest m;
    int fd;
    const hth_dataset_who alice = {"alice", false};
    assert_ok(put("a", "alice", 1, 8, HTH_TENANT_NEVER, &r));
    assert_ok(hth_dataset_hold(store, "a", "alice", &m, &fd));
    hth_manifest_fini(&m);
    assert_err(hth_dataset_remove(store, "a", NULL, alice), HTH_EBUSY, "trains on dataset 'a'");
    assert_err(put("a", "alice", 2, 4, HTH_TENANT_NEVER, &r), HTH_EBUSY, "trains on dataset 'a'");
    hth_store_let_go(fd);
    assert_ok(hth_store_put(store, "job.checkpoint", "", 0,
                            "{\"job\":{\"tenant\":\"alice\",\"data\":{\"dataset\":\"a\"}}}", NULL,
                            0, NULL, NULL, &r));
    assert_err(hth_dataset_remove(store, "a", NULL, alice), HTH_EBUSY,
               "job 'job' needs dataset 'a' to resume");
    assert_ok(put("a", "bob", 1, 8, HTH_TENANT_NEVER, &r));
    assert_ok(hth_dataset_remove(store, "a", NULL, (hth_dataset_who){"bob", false}));
    assert_ok(hth_store_rm(store, "job.checkpoint", 0));
    assert_ok(hth_dataset_remove(store, "a", NULL, alice));
    assert_err(hth_dataset_hold(store, "a", "alice", &m, &fd), HTH_ENOENT, "no dataset");
}

// Where a checkpoint cannot be read for want of memory, its job is not forgotten.
static void no_memory_frees_nothing(void **state)
{
    const hth_dataset_who alice = {"alice", false};
    hth_put_result r;
    assert_ok(put("n", "alice", 1, 8, HTH_TENANT_NEVER, &r));
    assert_ok(hth_store_put(store, "job.checkpoint", "", 0, NEEDS_N, NULL, 0, NULL, NULL, &r));
    for (uint64_t nth = 1; nth <= FAULTS; nth++) {
        hth_fault_alloc(nth);
        hth_err err = hth_dataset_remove(store, "n", NULL, alice);
        hth_fault_alloc(0);
        assert_true(err == HTH_EBUSY || err == HTH_ENOMEM);
    }
    assert_ok(hth_store_rm(store, "job.checkpoint", 0));
    assert_ok(hth_dataset_remove(store, "n", NULL, alice));
}

// What a job needs is the dataset at every moment, whatever fails while others are to replace it;
// the same content may come again.
static void what_is_needed_is_never_replaced(void **state)
{
    hth_put_result r;
    hth_manifest m, now;
    assert_ok(put("n", "alice", 1, 8, HTH_TENANT_NEVER, &r));
    assert_ok(hth_dataset_get(store, "n", "alice", &m));
    assert_ok(hth_store_put(store, "job.checkpoint", "", 0, NEEDS_N, NULL, 0, NULL, NULL, &r));
    for (uint64_t nth = 1; nth <= 2 * FAULTS; nth++) {
        hth_fault_alloc(nth <= FAULTS ? nth : 0);
        hth_store_file_fault(nth > FAULTS ? nth - FAULTS : 0, ENOSPC);
        hth_err err = put("n", "alice", 2, 4, HTH_TENANT_NEVER, &r);
        hth_fault_alloc(0);
        hth_store_file_fault(0, 0);
        assert_true(err == HTH_EBUSY || err == (nth <= FAULTS ? HTH_ENOMEM : HTH_EIO));
        assert_ok(hth_dataset_get(store, "n", "alice", &now));
        assert_true(hth_id_equal(&now.tensors[0].id, &m.tensors[0].id));
        hth_manifest_fini(&now);
    }
    assert_err(put("n", "alice", 2, 4, HTH_TENANT_NEVER, &r), HTH_EBUSY, "to resume");
    assert_int_equal(strncmp(hth_err_detail(), "job 'job' needs dataset", 23), 0);
    assert_ok(put("n", "alice", 1, 8, HTH_TENANT_NEVER, &r));
    assert_true(r.unchanged);
    hth_manifest_fini(&m);
    assert_ok(hth_store_rm(store, "job.checkpoint", 0));
    assert_ok(hth_dataset_remove(store, "n", NULL, (hth_dataset_who){"alice", false}));
}

// A put that fails has changed nothing, and one that has is none: what is left of the old version
// goes with the next one.
static void what_is_stored_is_no_failure(void **state)
{
    hth_put_result r;
    hth_manifest was, now;
    int *versions, n, stored = 0;
    assert_ok(put("s", "alice", 1, 8, HTH_TENANT_NEVER, &r));
    for (uint64_t nth = 1; nth <= 2 * FAULTS; nth++) {
        assert_ok(hth_dataset_get(store, "s", "alice", &was));
        hth_fault_alloc(nth <= FAULTS ? nth : 0);
        hth_store_file_fault(nth > FAULTS ? nth - FAULTS : 0, ENOSPC);
        hth_err err = put("s", "alice", (float)(1 + nth), 8, HTH_TENANT_NEVER, &r);
        hth_fault_alloc(0);
        hth_store_file_fault(0, 0);
        assert_ok(hth_dataset_get(store, "s", "alice", &now));
        assert_int_equal(err == HTH_OK, now.version != was.version);
        stored += err == HTH_OK;
        hth_manifest_fini(&was);
        hth_manifest_fini(&now);
    }
    assert_in_range(stored, 1, 2 * FAULTS - 1);
    assert_ok(put("s", "alice", 1, 8, HTH_TENANT_NEVER, &r));
    assert_ok(hth_store_versions(store, "s@alice.dataset", &versions, &n));
    assert_int_equal(n, 1);
    hth_free(versions);
    assert_ok(hth_dataset_remove(store, "s", NULL, (hth_dataset_who){"alice", false}));
}

// A canceled job's checkpoint is kept for who canceled it by mistake; datasets may go all the same.
static void canceled_jobs_need_none(void **state)
{
    static const char *const states[] = {"paused", "failed", "canceled"};
    const hth_dataset_who alice = {"alice", false};
    hth_put_result r;
    uint64_t id;
    char meta[200];
    json_t *checkpoint = NULL;
    assert_ok(put("c", "alice", 1, 8, HTH_TENANT_NEVER, &r));
    assert_ok(hth_job_index_add(store, "job", "alice", &id));
    snprintf(meta, sizeof meta,
             "{\"job\":{\"id\":%llu,\"tenant\":\"alice\",\"data\":{\"dataset\":\"c\"}}}",
             (unsigned long long)id);
    assert_ok(hth_store_put(store, "job.checkpoint", "", 0, meta, NULL, 0, NULL, NULL, &r));
    hth_checkpoint_note_set(store, "job", "why it does not go on by itself");
    for (size_t i = 0; i < sizeof states / sizeof *states; i++) {
        assert_ok(hth_job_index_set(store, id, json_pack("{s:s}", "state", states[i])));
        if (strcmp(states[i], "canceled") != 0) {
            assert_err(hth_dataset_remove(store, "c", NULL, alice), HTH_EBUSY,
                       "job 'job' needs dataset 'c' to resume");
        } else {
            assert_ok(hth_dataset_remove(store, "c", NULL, alice));
        }
    }
    assert_ok(hth_checkpoint_find(store, "job", &checkpoint)); // it is still there
    json_decref(checkpoint);
    assert_ok(hth_checkpoint_rm(store, "job"));
}

static void bad_ones_are_refused(void **state)
{
    hth_put_result r;
    char name[260];
    memset(name, 'n', sizeof name - 1);
    name[sizeof name - 1] = 0;
    assert_err(put("a/b", "alice", 1, 4, HTH_TENANT_NEVER, &r), HTH_EINVAL, "");
    assert_err(put("a@b", "alice", 1, 4, HTH_TENANT_NEVER, &r), HTH_EINVAL, "'@'");
    assert_err(put(name, "alice", 1, 4, HTH_TENANT_NEVER, &r), HTH_EINVAL, "");
    name[195] = 0;
    assert_err(put(name, "alice", 1, 4, HTH_TENANT_NEVER, &r), HTH_EINVAL, "too long");
    const hth_put_tensor t[] = {
        {.name = "x", .dtype = HTH_DT_F32, .shape = {1, {4}}, .data = values, .bytes = 16},
        {.name = "y", .dtype = HTH_DT_F32, .shape = {1, {3}}, .data = values, .bytes = 12},
        {.name = "z", .dtype = HTH_DT_F32, .data = values, .bytes = 4}};
    hth_dataset_put p = {"a", "alice", NULL, t, 2, HTH_TENANT_NEVER};
    assert_err(hth_dataset_store(store, &p, NULL, NULL, &r), HTH_EINVAL, "'y' has 3");
    p.n = 0;
    assert_err(hth_dataset_store(store, &p, NULL, NULL, &r), HTH_EINVAL, "no tensors");
    p.n = 1;
    p.tensors = t + 2;
    assert_err(hth_dataset_store(store, &p, NULL, NULL, &r), HTH_EINVAL, "single value");
    assert_int_equal(count((hth_dataset_who){"alice", true}), 0);
}

static void files_become_datasets(void **state)
{
    char path[100];
    hth_put_result r;
    uint64_t bytes;
    snprintf(path, sizeof path, "%s/f.safetensors", store_rig_dir);
    hearth_tensor t = {
        .name = "x", .dtype = HEARTH_F32, .rank = 1, .shape = {16}, .data = values, .bytes = 64};
    assert_ok(hth_safetensors_write(path, &t, 1));
    const hth_dataset_put p = {"f", NULL, NULL, NULL, 0, HTH_TENANT_NEVER};
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    assert_ok(hth_dataset_file(store, &p, fd, "f", NULL, NULL, &r, &bytes));
    close(fd);
    assert_int_equal(bytes, 64);
    assert_ok(hth_dataset_file(store, &p, -1, path, NULL, NULL, &r, &bytes));
    assert_true(r.unchanged);
    assert_err(hth_dataset_file(store, &p, -1, "/nowhere", NULL, NULL, &r, &bytes), HTH_ENOENT,
               "/nowhere");
    assert_ok(hth_dataset_remove(store, "f", NULL, (hth_dataset_who){NULL, false}));
    unlink(path);
}

// While another model's record is damaged no file is collected, but datasets go and come.
static void others_damage_is_no_failure(void **state)
{
    hth_put_result r;
    hth_manifest m;
    uint64_t files, bytes;
    const hth_dataset_who alice = {"alice", false};
    assert_ok(put("h", "alice", 1, 8, HTH_TENANT_NEVER, &r));
    assert_ok(hth_store_put(store, "other", "graph", 5, "{\"mark\": \"is damaged soon\"}", NULL, 0,
                            NULL, NULL, &r));
    record_damage(store_rig_path, "is damaged soon");
    assert_int_equal(hth_store_gc(store, &files, &bytes), HTH_ECORRUPT);
    assert_ok(put("h", "alice", 2, 4, HTH_TENANT_NEVER, &r));
    assert_ok(hth_dataset_get(store, "h", "alice", &m));
    assert_int_equal(m.tensors[0].shape.dim[0], 4);
    hth_manifest_fini(&m);
    assert_ok(hth_dataset_remove(store, "h", NULL, alice));
    assert_int_equal(count(alice), 0);
    assert_ok(hth_store_rm(store, "other", 0));
    assert_ok(hth_store_gc(store, &files, &bytes));
    assert_true(files > 0);
}

static hth_err put_once(void)
{
    hth_put_result r;
    HTH_TRY(put("f", "alice", 3, 6, 1000, &r));
    return hth_dataset_remove(store, "f", NULL, (hth_dataset_who){"alice", false});
}

static void allocations_fail_cleanly(void **state)
{
    hth_put_result r;
    assert_ok(put("g", "alice", 4, 6, HTH_TENANT_NEVER, &r));
    FAULT_LOOP(put_once());
    assert_ok(hth_dataset_remove(store, "g", NULL, (hth_dataset_who){"alice", false}));
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(they_belong_to_tenants),
                                       cmocka_unit_test(they_are_no_models),
                                       cmocka_unit_test(quotas_have_numbers),
                                       cmocka_unit_test(what_is_used_stays),
                                       cmocka_unit_test(no_memory_frees_nothing),
                                       cmocka_unit_test(what_is_needed_is_never_replaced),
                                       cmocka_unit_test(what_is_stored_is_no_failure),
                                       cmocka_unit_test(canceled_jobs_need_none),
                                       cmocka_unit_test(bad_ones_are_refused),
                                       cmocka_unit_test(files_become_datasets),
                                       cmocka_unit_test(others_damage_is_no_failure),
                                       cmocka_unit_test(allocations_fail_cleanly)};
    return cmocka_run_group_tests(tests, store_rig_open, store_rig_close);
}
