// SPDX-License-Identifier: Apache-2.0
// A training job that --on keeps on a device which is lost for good: what its user is told, and
// what is left of it. One of several devices of which one is lost: the others are not. A model that
// is unloaded while a device is away. This program is its own engines' process.
#include "base/settings.h"
#include "engine/process/child.h"
#include "engine/router/router_impl.h"
#include "runtime/checkpoint_index.h"
#include "tests/rig/children.h"
#include "tests/rig/group_job.h"

#include <signal.h>
#include <sys/prctl.h>

#define TWO  "cpu:0,mem=96MiB,threads=1 cpu:1,mem=160MiB,threads=1"
#define DIES "HEARTH_TEST_DIES" // names a file: while it is there, a new process ends at once
#define HELD "HEARTH_TEST_HELD" // .. or, where this is set, does not begin

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

typedef struct job {
    char args[900];
    call c;
} job;

static void job_start(fixture *f, job *j, const char *name, const char *on, const char *more)
{
    char cwd[300];
    assert_non_null(getcwd(cwd, sizeof cwd));
    snprintf(j->args, sizeof j->args,
             "{\"model\":\"new\",\"data\":\"%s/tests/data/digits/train.safetensors\",\"loss\":"
             "\"softmax-xent\",\"lr\":0.01,\"batch\":64,\"epochs\":1000000,\"on\":\"%s\","
             "\"save-as\":\"%s\"%s}",
             cwd, on, name, more);
    paths_named(f->store, j->args);
    j->c = (call){.r = {.command = HTH_COMMAND_TRAIN, .arguments = j->args}};
    call_start(f->engine, &j->c);
}

// lose ends the second device's process, and all that come after it, until a job there is given up.
// Returns the first device's.
static pid_t lose(job *j)
{
    pid_t pid[8];
    FILE *file = fopen(flag, "we");
    assert_non_null(file);
    assert_int_equal(fclose(file), 0);
    assert_int_equal(children_of(getpid(), pid, 8), 2);
    qsort(pid, 2, sizeof *pid, child_by_start);
    assert_int_equal(kill(pid[1], SIGKILL), 0);
    assert_err(call_wait(&j->c), HTH_EDEVLOST, "the engine process died too often");
    assert_int_equal(unlink(flag), 0);
    return pid[0];
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
    job made;
    rig_open(&f);
    job_start(&f, &made, "made", "cpu:1", ",\"checkpoint-every\":5");
    until(is_saved, &f);
    (void)lose(&made);
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
    job unmade;
    rig_open(&f);
    job_start(&f, &unmade, "unmade", "cpu:1", "");
    until(is_known, &f);
    (void)lose(&unmade);
    until(is_forgotten, &f);
    rig_close(&f);
}

// A job of two devices, of which one is lost before the first step, ends; the other device's
// process lives, and so does what it has at work.
static void others_live(void **state)
{
    fixture f;
    job alone, both;
    pid_t pid[8];
    bool lives = false;
    rig_open(&f);
    job_start(&f, &alone, "alone", "cpu:0", "");
    until_step(&f, "alone", 5);
    job_start(&f, &both, "both", "cpu:0,cpu:1", ",\"after\":\"alone\"");
    pid_t first = lose(&both);
    assert_non_null(strstr(both.c.r.detail, "device cpu:1: "));
    until_step(&f, "alone", step_of(&f, "alone") + 20);
    for (int i = children_of(getpid(), pid, 8); i-- > 0;) {
        lives = lives || pid[i] == first;
    }
    assert_true(lives);
    json_decref(told(&f, "cancel", "{\"job\":\"alone\"}"));
    assert_int_equal(call_wait(&alone.c), HTH_ECANCELED);
    rig_close(&f);
}

static bool is_at_work(fixture *f)
{
    json_t *doc = told(f, "job", "{\"job\":\"made\"}");
    bool is =
        strcmp(text(doc, "state"), "running") == 0 && strcmp(text(doc, "device"), "cpu:0") == 0;
    json_decref(doc);
    return is;
}

static const hth_engine_ops *good;
static hth_engine_ops broken;

// breaks is the submission of an engine whose device fails in the first pass of a group's member.
static hth_err breaks(hth_engine *engine, hth_request *request)
{
    if (request->command != HTH_COMMAND_TRAIN || request->member == 0) {
        return good->submit(engine, request);
    }
    request->err = HTH_EDEVLOST;
    snprintf(request->detail, sizeof request->detail, "it fell off the bus");
    request->done(request);
    return HTH_OK;
}

static bool is_dead(const fixture *f, int device)
{
    hth_router *n = hth_router_of(f->engine);
    pthread_mutex_lock(&n->lock);
    bool dead = n->device[device].dead;
    pthread_mutex_unlock(&n->lock);
    return dead;
}

// Where engines are threads it is the member's device that nothing is sent to any more, and the job
// goes on from its checkpoint on the other one.
static void thread_lost(void **state)
{
    fixture f;
    job made;
    devices_open(&f, TWO, false);
    put(f.store, "new", "tests/data/digits/untrained.onnx");
    job_start(&f, &made, "made", "cpu:0,cpu:1", ",\"checkpoint-every\":5");
    until(is_saved, &f);
    json_decref(told(&f, "cancel", "{\"job\":\"made\"}"));
    assert_int_equal(call_wait(&made.c), HTH_ECANCELED);
    hth_checkpoint_note_set(f.store, "made", ""); // as if it had been interrupted
    hth_engine *second = hth_router_of(f.engine)->device[1].engine;
    good = second->ops;
    broken = *good;
    broken.submit = breaks;
    second->ops = &broken;
    job_start(&f, &made, "made", "cpu:0,cpu:1", ",\"resume\":true");
    assert_err(call_wait(&made.c), HTH_EDEVLOST, "device cpu:1: it fell off the bus");
    assert_false(is_dead(&f, 0));
    assert_true(is_dead(&f, 1));
    until(is_at_work, &f);
    until_step(&f, "made", step_of(&f, "made") + 5);
    json_decref(told(&f, "cancel", "{\"job\":\"made\"}"));
    until(is_forgotten, &f);
    second->ops = good;
    fixture_close(&f);
}

static bool is_away(fixture *f)
{
    return !is_up(f);
}

// are_there tells which of the models "new" and "digits" are loaded on the second device: 1, 2.
static int are_there(fixture *f)
{
    call c = {.r = {.command = HTH_COMMAND_LOADED, .arguments = "{}"}};
    assert_ok(call_run(hth_router_of(f->engine)->device[1].engine, &c));
    int there =
        (strstr(c.r.json, "\"new\"") != NULL) + 2 * (strstr(c.r.json, "\"digits\"") != NULL);
    hth_free(c.r.json);
    return there;
}

static bool is_digits_there(fixture *f)
{
    return (are_there(f) & 2) != 0;
}

// What is unloaded while a device is away is answered at once, and is not there when it is back.
static void unloaded(void **state)
{
    fixture f;
    pid_t pid[8];
    rig_open(&f);
    put(f.store, "digits", "tests/data/digits/digits.onnx");
    json_decref(told(&f, "load", "{\"model\":\"new\",\"on\":\"cpu:1\",\"pin\":true}"));
    json_decref(told(&f, "load", "{\"model\":\"digits\",\"on\":\"cpu:1\"}"));
    FILE *file = fopen(flag, "we");
    assert_non_null(file);
    assert_int_equal(fclose(file), 0);
    assert_int_equal(setenv(HELD, "", 1), 0);
    assert_int_equal(children_of(getpid(), pid, 8), 2);
    qsort(pid, 2, sizeof *pid, child_by_start);
    assert_int_equal(kill(pid[1], SIGKILL), 0);
    until(is_away, &f);
    json_decref(told(&f, "unload", "{\"model\":\"new\"}"));
    assert_false(is_up(&f));
    assert_int_equal(unlink(flag), 0);
    until(is_up, &f);
    until(is_digits_there, &f);
    json_decref(
        told(&f, "load", "{\"model\":\"digits\",\"on\":\"cpu:1\"}")); // after all that waited
    assert_int_equal(are_there(&f), 2);
    unsetenv(HELD);
    rig_close(&f);
}

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(named),       cmocka_unit_test(unsaved),  cmocka_unit_test(others_live),
        cmocka_unit_test(thread_lost), cmocka_unit_test(unloaded),
    };
    if (hth_child_requested(argc, argv)) {
        const char *path = getenv(DIES);
        while (path != NULL && access(path, F_OK) == 0) {
            if (getenv(HELD) == NULL) {
                return 1;
            }
            prctl(PR_SET_PDEATHSIG, SIGKILL);
            nanosleep(&(struct timespec){.tv_nsec = 2000000}, NULL);
        }
        return hth_child_run(&(hth_child_config){.orphaned = child_orphaned});
    }
    return cmocka_run_group_tests(tests, NULL, NULL);
}
