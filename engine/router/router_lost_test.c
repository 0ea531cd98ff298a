// SPDX-License-Identifier: Apache-2.0
// A training job that --on keeps on a device which is lost for good: what its user is told, and
// what is left of it. This program is its own engines' process.
#include "base/settings.h"
#include "engine/process/child.h"
#include "engine/router/router_impl.h"
#include "tests/rig/children.h"
#include "tests/rig/group_job.h"

#include <signal.h>

#define TWO  "cpu:0,mem=96MiB,threads=1 cpu:1,mem=160MiB,threads=1"
#define DIES "HEARTH_TEST_DIES" // names a file: while it is there, a new process ends at once

static char flag[64];

static void until(bool (*done)(fixture *f), fixture *f)
{
    uint64_t until_ns = hth_real_after(LIMIT_NS);
    while (!done(f)) {
        assert_true(hth_real_ns() < until_ns);
        nanosleep(&(struct timespec){.tv_nsec = 2000000}, NULL);
    }
}

static bool is_saved(fixture *f)
{
    hth_manifest m;
    bool there = hth_store_get(f->store, "made.checkpoint", 0, &m) == HTH_OK;
    if (there) {
        hth_manifest_fini(&m);
    }
    return there;
}

// is_known: the router has a row of a job.
static bool is_known(fixture *f)
{
    hth_router *n = hth_router_of(f->engine);
    pthread_mutex_lock(&n->lock);
    bool known = n->jobs != NULL;
    pthread_mutex_unlock(&n->lock);
    return known;
}

static bool is_forgotten(fixture *f)
{
    return !is_known(f);
}

static bool is_up(fixture *f)
{
    return hth_engine_ready(hth_router_of(f->engine)->device[1].engine);
}

static const char *text(const json_t *doc, const char *key)
{
    const char *s = json_string_value(json_object_get(doc, key));
    return s != NULL ? s : "";
}

// lose runs a job on the second device, and ends its process, and all that come after it, until the
// job is given up.
static void lose(fixture *f, const char *name, const char *more, bool (*begun)(fixture *f))
{
    char cwd[300], args[900];
    pid_t pid[8];
    assert_non_null(getcwd(cwd, sizeof cwd));
    snprintf(args, sizeof args,
             "{\"model\":\"new\",\"data\":\"%s/tests/data/digits/train.safetensors\",\"loss\":"
             "\"softmax-xent\",\"lr\":0.01,\"batch\":64,\"epochs\":1000000,\"on\":\"cpu:1\","
             "\"save-as\":\"%s\"%s}",
             cwd, name, more);
    paths_named(f->store, args);
    call c = {.r = {.command = HTH_COMMAND_TRAIN, .arguments = args}};
    call_start(f->engine, &c);
    until(begun, f);
    FILE *file = fopen(flag, "we");
    assert_non_null(file);
    assert_int_equal(fclose(file), 0);
    assert_int_equal(children_of(getpid(), pid, 8), 2);
    qsort(pid, 2, sizeof *pid, child_by_start);
    assert_int_equal(kill(pid[1], SIGKILL), 0);
    assert_err(call_wait(&c), HTH_EDEVLOST, "the engine process died too often");
    assert_int_equal(unlink(flag), 0);
}

static void rig_open(fixture *f)
{
    snprintf(flag, sizeof flag, "/tmp/hearth-dies-%d", (int)getpid());
    assert_int_equal(setenv(DIES, flag, 1), 0);
    assert_ok(hth_setting_set("engine.restart_backoff_ms", "20"));
    devices_open(f, TWO, true);
    put(f->store, "new", "tests/data/digits/untrained.onnx");
}

static void rig_close(fixture *f)
{
    fixture_close(f);
    hth_setting_reset();
    unsetenv(DIES);
}

// Who asks for it is told why it ended, and `resume` has it go on.
static void named(void **state)
{
    fixture f;
    rig_open(&f);
    lose(&f, "made", ",\"checkpoint-every\":5", is_saved);
    until(is_forgotten, &f);
    json_t *doc = told(&f, "job", "{\"job\":\"made\"}");
    assert_string_equal(text(doc, "state"), "failed");
    assert_non_null(strstr(text(doc, "why"), "its device cpu:1 is lost"));
    assert_true(json_is_true(json_object_get(doc, "resumable")));
    json_decref(doc);
    json_decref(told(&f, "resume", "{\"job\":\"made\"}"));
    doc = told(&f, "job", "{\"job\":\"made\"}");
    assert_int_not_equal(text(doc, "device")[0], 0);
    assert_string_equal(text(doc, "why"), "");
    json_decref(doc);
    json_decref(told(&f, "cancel", "{\"job\":\"made\"}"));
    until(is_forgotten, &f);
    until(is_up, &f); // the device is tried on
    rig_close(&f);
}

// One without a checkpoint has failed, and leaves nothing in the router.
static void unsaved(void **state)
{
    fixture f;
    rig_open(&f);
    lose(&f, "unmade", "", is_known);
    until(is_forgotten, &f);
    rig_close(&f);
}

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(named),
        cmocka_unit_test(unsaved),
    };
    if (hth_child_requested(argc, argv)) {
        const char *path = getenv(DIES);
        if (path != NULL && access(path, F_OK) == 0) {
            return 1;
        }
        return hth_child_run(&(hth_child_config){.orphaned = child_orphaned});
    }
    return cmocka_run_group_tests(tests, NULL, NULL);
}
