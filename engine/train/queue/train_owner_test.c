// SPDX-License-Identifier: Apache-2.0
// A job belongs to the tenant that asked for it: nobody else sees it or changes it, but who has the
// role 'admin'. At work, paused, left behind in the store, and ended.
#include "tests/rig/train_job.h"

#include "base/settings.h"
#include "runtime/checkpoint_index.h"
#include "runtime/job_index.h"
#include "runtime/tenants/owner.h"

static void as(const char *tenant, bool admin)
{
    as_tenant = tenant;
    as_admin = admin;
}

// How many jobs are listed, all of them of `tenant`.
static size_t listed(fixture *f, const char *tenant)
{
    hth_err err;
    json_t *rows = ask(f, "jobs", "{}", &err), *row;
    size_t i, n = json_array_size(rows);
    assert_ok(err);
    json_array_foreach(rows, i, row)
    {
        assert_string_equal(json_string_value(json_object_get(row, "tenant")), tenant);
    }
    json_decref(rows);
    return n;
}

static void allowed(fixture *f, const char *query, const char *arguments, const char *state)
{
    hth_err err;
    json_t *row = ask(f, query, arguments, &err);
    assert_ok(err);
    assert_string_equal(json_string_value(json_object_get(row, "state")), state);
    json_decref(row);
}

static void denied(fixture *f, const char *query, const char *arguments)
{
    hth_err err;
    assert_null(ask(f, query, arguments, &err));
    assert_err(err, HTH_EDENIED, "job 'result' belongs to another tenant");
}

// What is refused leaves no trace in the job's record: jobs that are to follow it go by that.
static void record_stays(fixture *f, const char *arguments, hth_err want)
{
    json_t *before, *after;
    hth_err err;
    assert_ok(hth_job_index_get(f->store, 1, &before));
    assert_null(ask(f, "train", arguments, &err));
    assert_int_equal(err, want);
    assert_ok(hth_job_index_get(f->store, 1, &after));
    assert_true(json_equal(before, after));
    json_decref(before);
    json_decref(after);
}

static void nothing_for_others(fixture *f)
{
    hth_err err;
    as("bob", false);
    assert_int_equal(listed(f, "bob"), 0);
    denied(f, "job", "{\"job\": \"result\"}");
    denied(f, "job", "{\"job\": \"result\", \"budget\": \"50%\"}");
    denied(f, "pause", "{\"job\": \"result\"}");
    denied(f, "resume", "{\"job\": \"result\", \"budget\": \"50%\"}");
    denied(f, "cancel", "{\"job\": \"result\"}");
    denied(f, "logs", "{\"job\": \"result\"}");
    assert_null(ask(f, "train", "{\"job\": \"result\"}", &err)); // as of one that there is not
    assert_err(err, HTH_ENOENT, "job 'result' has no checkpoint");
    denied(f, "train", "{\"model\": \"mlp_sgd\", \"save-as\": \"result\"}");
    record_stays(f,
                 "{\"model\": \"mlp_sgd\", \"save-as\": \"result\", \"resume\": true, \"id\": 1}",
                 HTH_EDENIED);
    json_t *bars = ask(f, "timeline", "{}", &err);
    assert_true(json_is_null(json_object_get(bars, "job")));
    assert_int_equal(json_array_size(json_object_get(bars, "bars")), 0);
    json_decref(bars);
    as("alice", false);
    assert_int_equal(listed(f, "alice"), 1);
}

// Of others' jobs in the queue it is told that they are there, and what they hold; not what they
// are. Who may see all, may ask for its own.
static void something_runs(fixture *f, size_t n)
{
    hth_err err;
    json_t *rows = ask(f, "jobs", "{\"all\": true}", &err);
    assert_ok(err);
    assert_int_equal(json_array_size(rows), n);
    const json_t *row = json_array_get(rows, 0);
    if (n > 0) {
        assert_int_equal(json_object_size(row), 6);
        assert_string_equal(json_string_value(json_object_get(row, "state")), "running");
        assert_true(json_integer_value(json_object_get(row, "memory_bytes")) > 0);
        assert_true(json_is_null(json_object_get(row, "job")));
        assert_true(json_is_null(json_object_get(row, "id")));
        assert_true(json_is_null(json_object_get(row, "tenant")));
    }
    json_decref(rows);
}

// The same in every state of a job.
static void test_states(void **state)
{
    fixture f;
    witness w;
    char data[200];
    double want[STEPS];
    hth_err err;
    fixture_open(&f, "cpu:mem=256MiB,threads=2");
    prepare(&f, &mlp, data);
    json_t *q = arguments_of(&mlp, data, "{\"checkpoint-every\": 1, \"epochs\": 9}", want);
    char *text = json_dumps(q, JSON_COMPACT);
    json_decref(q);
    as("alice", false);
    train_three_steps(&f, &w, text);
    nothing_for_others(&f); // at work
    as("bob", false);
    something_runs(&f, 1);
    as("carol", true);
    assert_int_equal(listed(&f, "alice"), 1);
    json_t *own = ask(&f, "jobs", "{\"mine\": true}", &err);
    assert_int_equal(json_array_size(own), 0);
    json_decref(own);
    as("alice", false);
    own = ask(&f, "logs", "{\"job\": \"result\"}", &err);
    assert_ok(err);
    assert_true(json_array_size(json_object_get(own, "lines")) > 2);
    json_decref(own);
    record_stays(&f,
                 "{\"model\": \"mlp_sgd\", \"save-as\": \"result\", \"resume\": true, \"id\": 1}",
                 HTH_EBUSY); // it is at work
    allowed(&f, "job", "{\"job\": \"result\", \"budget\": \"90%\"}", "running");
    allowed(&f, "pause", "{\"job\": \"result\"}", "paused");
    nothing_for_others(&f);
    as("carol", true);
    assert_int_equal(listed(&f, "alice"), 1);
    allowed(&f, "job", "{\"job\": \"result\"}", "paused");
    witness_let_go(); // it is paused: no step is made
    hth_engine_close(f.engine);
    assert_true(w.c.finished);
    hth_engine_config config = {.device = "cpu:mem=256MiB,threads=2", .resume = true};
    assert_ok(hth_engine_open(&config, f.store, &f.engine));
    nothing_for_others(&f); // in the store
    as("bob", false);
    something_runs(&f, 0);
    as("alice", false);
    allowed(&f, "cancel", "{\"job\": \"result\"}", "canceled");
    as("bob", false);
    assert_int_equal(listed(&f, "bob"), 0); // ended
    assert_null(ask(&f, "job", "{\"job\": \"result\"}", &err));
    assert_err(err, HTH_EDENIED, "belongs to another tenant");
    denied(&f, "train", "{\"model\": \"mlp_sgd\", \"save-as\": \"result\"}"); // it can go on
    assert_ok(hth_checkpoint_rm(f.store, "result"));
    json_decref(train(&f, arguments_of(&mlp, data, "{}", want), &err)); // the name is free again
    assert_ok(err);
    assert_int_equal(listed(&f, "bob"), 1);
    as("alice", false);
    assert_int_equal(listed(&f, "alice"), 1); // hers has another number
    as(NULL, false);
    hth_free(w.c.r.json);
    free(text);
    fixture_close(&f);
}

static void put_owned(fixture *f, const char *name, const char *owner)
{
    hth_manifest m;
    hth_put_result result;
    hth_const *view[8];
    hth_put_tensor t[8];
    assert_ok(hth_store_get(f->store, "mlp_sgd", 0, &m));
    assert_true(m.n_tensors <= 8);
    for (int i = 0; i < m.n_tensors; i++) {
        const hth_manifest_tensor *x = &m.tensors[i];
        assert_ok(hth_store_view(f->store, x, &view[i]));
        t[i] = (hth_put_tensor){.name = x->name,
                                .dtype = x->dtype,
                                .shape = x->shape,
                                .data = view[i]->data,
                                .bytes = x->bytes};
    }
    char *meta = hth_owner_meta(m.meta, owner);
    assert_ok(hth_store_put(f->store, name, m.skeleton, m.skeleton_bytes, meta, t, m.n_tensors,
                            NULL, NULL, &result));
    hth_free(meta);
    for (int i = 0; i < m.n_tensors; i++) {
        hth_const_rele(view[i]);
    }
    hth_manifest_fini(&m);
}

// What a job was looked at for when it was submitted, it cannot get by going on: another tenant's
// model, and the checkpoints of another tenant's job.
static void stays_the_job_it_was(void **state)
{
    static const char *const changes[] = {"\"model\": \"hers\"", "\"save-as\": \"secret\"",
                                          "\"save-as\": null"};
    fixture f;
    char data[200], text[200];
    double want[STEPS];
    hth_err err;
    fixture_open(&f, "cpu:mem=256MiB,threads=2");
    prepare(&f, &mlp, data);
    put_owned(&f, "hers", "alice");
    as("alice", false);
    train_and_leave(
        &f, arguments_of(&mlp, data, "{\"checkpoint-every\": 1, \"save-as\": \"secret\"}", want),
        2);
    as("bob", false);
    assert_null(train(&f, arguments_of(&mlp, data, "{\"model\": \"hers\"}", want), &err));
    assert_err(err, HTH_EDENIED, "model 'hers' belongs to another tenant");
    train_and_leave(&f, arguments_of(&mlp, data, "{\"checkpoint-every\": 1}", want), 1);
    for (size_t i = 0; i < sizeof changes / sizeof changes[0]; i++) {
        snprintf(text, sizeof text, "{\"job\": \"result\", %s}", changes[i]);
        assert_null(ask(&f, "resume", text, &err));
        assert_err(err, HTH_EINVAL, "job 'result' goes on as it was submitted");
        assert_null(ask(&f, "train", text, &err));
        assert_err(err, HTH_EINVAL, "job 'result' goes on as it was submitted");
    }
    json_decref(ask(&f, "train",
                    "{\"job\": \"result\", \"model\": \"mlp_sgd\", \"save-as\": \"result\"}",
                    &err));
    assert_ok(err);
    as(NULL, false);
    fixture_close(&f);
}

// tensors_bytes sums what a version has, each content once; *changed: of that, what another one has
// not.
static uint64_t tensors_bytes(fixture *f, const char *name, const char *other, uint64_t *changed)
{
    hth_manifest a, b;
    uint64_t all = 0;
    *changed = 0;
    assert_ok(hth_store_get(f->store, name, 0, &a));
    assert_ok(hth_store_get(f->store, other, 0, &b));
    for (int i = 0; i < a.n_tensors; i++) {
        bool same = false, again = false;
        for (int k = 0; k < b.n_tensors; k++) {
            same = same || hth_id_equal(&a.tensors[i].id, &b.tensors[k].id);
        }
        for (int k = 0; k < i; k++) {
            again = again || hth_id_equal(&a.tensors[i].id, &a.tensors[k].id);
        }
        all += again ? 0 : a.tensors[i].bytes;
        *changed += same || again ? 0 : a.tensors[i].bytes;
    }
    hth_manifest_fini(&a);
    hth_manifest_fini(&b);
    return all;
}

// What counts of a version in addition to its tensors: graph, text and names.
static uint64_t record_bytes(fixture *f, const char *name)
{
    hth_manifest m;
    assert_ok(hth_store_get(f->store, name, 0, &m));
    uint64_t bytes = m.skeleton_bytes + strlen(m.meta);
    for (int i = 0; i < m.n_tensors; i++) {
        bytes += HTH_OWNER_TENSOR + strlen(m.tensors[i].name);
    }
    hth_manifest_fini(&m);
    return bytes;
}

static void limit_store(fixture *f, uint64_t bytes)
{
    char path[100];
    snprintf(path, sizeof path, "%s/tenants", f->dir);
    FILE *file = fopen(path, "w");
    assert_non_null(file);
    fprintf(file, "alice store=%llu\n", (unsigned long long)bytes);
    fclose(file);
    assert_ok(hth_setting_set("tenant.file", path));
    hth_engine_close(f->engine);
    hth_engine_config config = {.device = "cpu:mem=256MiB,threads=2"};
    assert_ok(hth_engine_open(&config, f->store, &f->engine));
}

// A result that will not fit is refused when it is asked for, with the numbers: of what training
// changes, and of what it does not where that is not the owner's yet.
static void results_have_room(void **state)
{
    fixture f;
    char data[200], text[900];
    double want[STEPS];
    uint64_t changed, frozen, all, has;
    hth_err err;
    fixture_open(&f, "cpu:mem=256MiB,threads=2");
    prepare(&f, &image_net, data);
    const char *few = "{\"save-as\": \"few\", \"freeze\": [\"f.[0-6].*\"]}";
    json_decref(train(&f, arguments_of(&image_net, data, "{\"save-as\": \"whole\"}", want), &err));
    assert_ok(err);
    all = tensors_bytes(&f, "whole", image_net.model, &changed);
    json_decref(train(&f, arguments_of(&image_net, data, few, want), &err));
    assert_ok(err);
    tensors_bytes(&f, "few", image_net.model, &frozen);
    assert_true(frozen > 0 && frozen < changed && changed <= all);
    as("alice", false);
    limit_store(&f, all - 1);
    json_t *q = arguments_of(&image_net, data, "{\"save-as\": \"hers\"}", want);
    assert_null(train(&f, json_incref(q), &err));
    assert_err(err, HTH_EDENIED, "the result of job 'hers' does not fit: tenant 'alice' has 0 B");
    json_t *jobs = ask(&f, "jobs", "{}", &err);
    assert_int_equal(json_array_size(jobs), 0); // it never was one
    json_decref(jobs);
    json_t *house = arguments_of(&image_net, data, "{\"save-as\": \"whole\"}", want);
    assert_null(train(&f, house, &err)); // that would count for nobody
    assert_err(err, HTH_EDENIED, "model 'whole' is nobody's");
    limit_store(&f, 2 * all); // some of what changes may stay as it is
    json_decref(train(&f, json_incref(q), &err));
    assert_ok(err);
    has = tensors_bytes(&f, "hers", "whole", &changed);
    tensors_bytes(&f, "whole", image_net.model, &changed);
    // the next version of hers has what changes in addition to what she has
    json_decref(q);
    q = arguments_of(&image_net, data, "{\"save-as\": \"hers\", \"model\": \"hers\"}", want);
    limit_store(&f, has + changed - 1);
    assert_null(train(&f, json_incref(q), &err));
    assert_err(err, HTH_EDENIED, "(store=, tenant.file)");
    snprintf(text, sizeof text,
             "{\"save-as\": \"hers\", \"model\": \"hers\", \"freeze\": [\"f.[0-6].*\"]}");
    uint64_t records = 2 * record_bytes(&f, "hers") + 512; // the next one's text is a little longer
    assert_true(frozen + records < changed + record_bytes(&f, "hers"));
    limit_store(&f, has + frozen + records);
    json_decref(train(&f, arguments_of(&image_net, data, text, want), &err));
    assert_ok(err);
    limit_store(&f, has + frozen + 2 * records + 2 * all);
    json_decref(train(&f, q, &err));
    assert_ok(err);
    as(NULL, false);
    hth_setting_reset();
    fixture_close(&f);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_states),
                                       cmocka_unit_test(results_have_room),
                                       cmocka_unit_test(stays_the_job_it_was)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
