// SPDX-License-Identifier: Apache-2.0
// tests/rig/group_job.h - training jobs on several CPU devices, whose engines are threads, or
// processes of the test program.
#ifndef HTH_TESTS_RIG_GROUP_JOB_H
#define HTH_TESTS_RIG_GROUP_JOB_H

#include "base/spin.h"
#include "tests/rig/train_job.h"

#include <time.h>

#define LIMIT_NS 300000000000u

// engines_open opens engines on the fixture's store.
static inline void engines_open(fixture *f, const char *devices, bool child)
{
    hth_engine_config config = {
        .device = devices, .child_store = child ? f->dir : NULL, .resume = true};
    assert_ok(hth_engine_open(&config, f->store, &f->engine));
}

static inline void devices_open(fixture *f, const char *devices, bool child)
{
    strcpy(f->dir, "/tmp/hearth-group-XXXXXX");
    assert_non_null(mkdtemp(f->dir));
    assert_ok(hth_store_open(f->dir, true, false, &f->store));
    assert_ok(hth_job_paths_begin(f->store));
    link_known(f->store, devices);
    engines_open(f, devices, child);
}

// 0: it is not there yet.
static inline json_int_t step_of(fixture *f, const char *job)
{
    char args[100];
    hth_err err;
    snprintf(args, sizeof args, "{\"job\":\"%s\",\"points\":1}", job);
    json_t *doc = ask(f, "job", args, &err);
    assert_true(err == HTH_OK || err == HTH_ENOENT);
    json_int_t step = json_integer_value(json_object_get(doc, "step"));
    json_decref(doc);
    return step;
}

static inline void until_step(fixture *f, const char *job, json_int_t step)
{
    uint64_t until = hth_real_after(LIMIT_NS);
    while (step_of(f, job) < step) {
        assert_true(hth_real_ns() < until);
        nanosleep(&(struct timespec){.tv_nsec = 2000000}, NULL);
    }
}

// members_of is how many members a job has; *joined of them take part. NULL is allowed.
static inline size_t members_of(fixture *f, const char *job, size_t *joined)
{
    char args[100];
    hth_err err;
    size_t i, there = 0;
    json_t *member;
    snprintf(args, sizeof args, "{\"job\":\"%s\",\"points\":1}", job);
    json_t *row = ask(f, "job", args, &err);
    assert_ok(err);
    json_array_foreach(json_object_get(row, "members"), i, member)
    {
        there += json_is_true(json_object_get(member, "joined"));
    }
    size_t n = json_array_size(json_object_get(row, "members"));
    if (joined != NULL) {
        *joined = there;
    }
    json_decref(row);
    return n;
}

static inline json_t *finished(call *c)
{
    assert_ok(call_wait(c));
    json_t *doc = json_loads(c->r.json, 0, NULL);
    hth_free(c->r.json);
    return doc;
}

// close_losses compares the losses of two jobs that summed in another order.
static inline void close_losses(const char *name, const json_t *a, const json_t *b)
{
    const json_t *want = json_object_get(a, "history"), *got = json_object_get(b, "history");
    assert_int_equal(json_array_size(got), json_array_size(want));
    for (size_t i = 0; i < json_array_size(want); i++) {
        double x = json_number_value(json_array_get(json_array_get(got, i), 0));
        double y = json_number_value(json_array_get(json_array_get(want, i), 0));
        if (!(fabs(x - y) <= 2e-3 * fabs(y) + 1e-4)) {
            fail_msg("%s: loss %zu is %g, alone %g", name, i, x, y);
        }
    }
}

#endif
