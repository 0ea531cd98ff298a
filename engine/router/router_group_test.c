// SPDX-License-Identifier: Apache-2.0
// One training job on several CPU devices: the losses of one device, whatever the shards and the
// budgets; the same bits of the same shards; what is refused; and members, the lead too, whose
// processes are killed. Engines are threads, or processes of this program.
#include "engine/process/child.h"
#include "engine/router/router.h"
#include "planner/plan_least_test.h"
#include "runtime/checkpoint_index.h"
#include "tests/rig/children.h"
#include "tests/rig/group_job.h"

#include "base/settings.h"

#include <signal.h>

#define TWO         "cpu:0,mem=128MiB,threads=1 cpu:1,mem=128MiB,threads=1"
#define THREE       TWO " cpu:2,mem=128MiB,threads=1"
#define UNLIKE      "cpu:0,mem=128MiB,threads=1 cpu:1,mem=128MiB,threads=2,isa=sse2"
#define EPOCHS      400 // of STEPS
#define MOST_DEATHS 3   // of processes while they are at work on a job (train_submit.c)
#define EPOCHS_SYNC 16  // later a rounding may decide which side of a ReLU a value is on

static json_t *train_all(fixture *f, const training *t, const char *data, const char *more,
                         double *want)
{
    hth_err err;
    json_t *args = arguments_of(t, data, more, want);
    char *text = json_dumps(args, JSON_COMPACT);
    paths_named(f->store, text);
    free(text);
    json_t *doc = train(f, args, &err);
    if (doc == NULL) {
        fail_msg("%s %s: %s", t->model, more, hth_err_detail());
    }
    return doc;
}

static void check_losses(const char *model, const char *more, json_t *doc, const double *want)
{
    double loss[STEPS];
    losses_of(doc, loss);
    for (int i = 0; i < STEPS; i++) {
        if (!(fabs(loss[i] - want[i]) <= 2e-4 * fabs(want[i]) + 1e-5)) {
            fail_msg("%s %s: loss %d is %g, PyTorch's is %g", model, more, i, loss[i], want[i]);
        }
    }
}

// Models on two devices and on three: with even shards, and with uneven ones under a budget.
static void as_one_device(const training *const *models, size_t n_models, const char *option,
                          const char *budget)
{
    static const char *const uneven[] = {
        "\"on\": \"cpu:1,cpu:0\", \"shards\": [[0, 1, 3], [2, 2, 2], [4, 3, 1]]",
        "\"on\": \"all\", \"shards\": [[0, 1, 2, 1]]"};
    for (int members = 2; members <= 3; members++) {
        fixture f;
        char data[200], more[2][200];
        double want[STEPS];
        devices_open(&f, members == 2 ? TWO : THREE, false);
        snprintf(more[0], sizeof more[0], "{%s\"on\": \"all\"}", option);
        snprintf(more[1], sizeof more[1], "{%s%s, \"budget\": \"%s\"}", option, uneven[members - 2],
                 budget);
        for (size_t m = 0; m < n_models; m++) {
            prepare(&f, models[m], data);
            for (int k = 0; k < 2; k++) {
                json_t *doc = train_all(&f, models[m], data, more[k], want);
                check_losses(models[m]->model, more[k], doc, want);
                assert_true(json_array_size(json_object_get(doc, "shards")) >= 1);
                json_decref(doc);
            }
        }
        fixture_close(&f);
    }
}

// Batch norm apart, whose statistics are those of a shard.
static void losses(void **state)
{
    static const training *const models[] = {&mlp, &mlp_bce, &encoder, &tokens};
    as_one_device(models, sizeof models / sizeof *models, "", "60%");
}

// With --sync-bn batch norm's statistics are those of the whole batch, however it is divided, and
// whatever its labels weigh: net_smooth's last one of each batch counts for nothing.
static void sync_bn(void **state)
{
    static const training *const models[] = {&image_net, &mobile, &unet,
                                             &clipped,   &smooth, &image_bce};
    as_one_device(models, sizeof models / sizeof *models, "\"sync-bn\": true, ", "75%");
}

// A parameter server: the losses and the result of members that all make the same update, to the
// bit; of the optimizer's state the others hold nothing.
static void server(void **state)
{
    static const training *const models[] = {&image_net, &encoder, &clipped, &mlp};
    fixture f;
    char data[200], more[300];
    double want[STEPS];
    devices_open(&f, THREE, false);
    for (size_t m = 0; m < sizeof models / sizeof *models; m++) {
        prepare(&f, models[m], data);
        json_t *doc[3];
        for (int i = 0; i < 3; i++) { // algorithms are measured in the first
            snprintf(more, sizeof more,
                     "{\"on\": \"all\", \"budget\": \"32MiB\", \"reduce\": \"%s\", "
                     "\"save-as\": \"%s\", \"shards\": [[0, 1, 1, 2], [2, 2, 1, 1]]}",
                     i < 2 ? "all" : "ps", i < 2 ? "all" : "ps");
            doc[i] = train_all(&f, models[m], data, more, want);
        }
        if (models[m] != &image_net && models[m] != &clipped) { // batch norm
            check_losses(models[m]->model, more, doc[2], want);
        }
        same_losses(doc[1], doc[2], STEPS);
        same_tensors(&f, "all", "ps");
        for (int i = 0; i < 3; i++) {
            json_decref(doc[i]);
        }
    }
    expect(&f, &mlp, data, "{\"on\": \"all\", \"reduce\": \"some\"}", "not one of all, ps");
    expect(&f, &mlp, data, "{\"reduce\": \"ps\"}", "--reduce ps is for several devices");
    fixture_close(&f);
}

// Members make the same update to the bit, whatever instructions and number of threads their
// devices have, and gradients are clipped by one norm: the lead that updates for all has the same
// result.
static void unlike_devices(void **state)
{
    static const char *const saved[] = {"measured", "all", "ps"};
    fixture f;
    char data[200], more[200];
    double want[STEPS];
    devices_open(&f, UNLIKE, true);
    prepare(&f, &clipped, data);
    for (int i = 0; i < 3; i++) { // algorithms are measured in the first
        snprintf(more, sizeof more,
                 "{\"on\": \"all\", \"reduce\": \"%s\", \"save-as\": \"%s\", \"clip\": 0.01, "
                 "\"epochs\": 60, \"shards\": [[0, 2, 2]]}",
                 i < 2 ? "all" : "ps", saved[i]);
        json_decref(train_all(&f, &clipped, data, more, want));
    }
    same_tensors(&f, "all", "ps");
    fixture_close(&f);
}

// The last batch of an epoch has one sample: a member without any updates as the others do, with
// the step's rate and corrections.
static void last_sample(void **state)
{
    static const char *const on[] = {"cpu:0", "all", "cpu:1,cpu:0", "all"};
    fixture f;
    char data[200], more[160];
    double want[STEPS];
    json_t *doc[4];
    devices_open(&f, TWO, false);
    prepare(&f, &encoder, data);
    for (int i = 0; i < 4; i++) {
        snprintf(more, sizeof more,
                 "{\"on\": \"%s\", \"batch\": 23, \"epochs\": 4, \"schedule\": \"linear\", "
                 "\"reduce\": \"%s\"}",
                 on[i], i < 3 ? "all" : "ps");
        doc[i] = train_all(&f, &encoder, data, more, want);
        const json_t *alone = json_object_get(doc[0], "history"),
                     *is = json_object_get(doc[i], "history");
        assert_int_equal(json_array_size(is), 8);
        for (size_t k = 0; k < 8; k++) {
            double a = json_number_value(json_array_get(json_array_get(alone, k), 0)),
                   b = json_number_value(json_array_get(json_array_get(is, k), 0));
            if (!(fabs(a - b) <= 2e-4 * fabs(a) + 1e-5)) {
                fail_msg("on %s: loss %d is %g, one device's is %g", on[i], (int)k, b, a);
            }
        }
    }
    for (int i = 0; i < 4; i++) {
        json_decref(doc[i]);
    }
    fixture_close(&f);
}

// Of the same shards, with the same algorithms; with batch norm, whose statistics are summed, too.
static void bits(void **state)
{
    static const training *const models[] = {&image_net, &encoder, &clipped};
    fixture f;
    char data[200], more[300];
    double want[STEPS];
    hth_err err;
    devices_open(&f, THREE, false);
    for (size_t m = 0; m < sizeof models / sizeof *models; m++) {
        prepare(&f, models[m], data);
        const char *first =
            "{\"on\": \"all\", \"budget\": \"32MiB\", \"shards\": [[0, 2, 1, 1], [3, 1, 1, 2]]}";
        json_decref(train_all(&f, models[m], data, first, want)); // algorithms are measured here
        json_t *a =
            train_all(&f, models[m], data,
                      "{\"on\": \"all\", \"save-as\": \"a\", \"budget\": \"32MiB\", \"shards\": "
                      "[[0, 2, 1, 1], [3, 1, 1, 2]]}",
                      want);
        char *shards = json_dumps(json_object_get(a, "shards"), JSON_COMPACT);
        assert_string_equal(shards, "[[0,2,1,1],[3,1,1,2]]");
        snprintf(more, sizeof more,
                 "{\"on\": \"all\", \"save-as\": \"b\", \"budget\": \"32MiB\", \"shards\": "
                 "{\"shards\": %s}}",
                 shards);
        json_t *row = ask(&f, "job", "{\"job\":\"a\"}", &err);
        assert_true(json_equal(json_object_get(row, "shards"), json_object_get(a, "shards")));
        json_decref(row);
        json_t *b = train_all(&f, models[m], data, more, want);
        same_losses(a, b, STEPS);
        same_tensors(&f, "a", "b");
        free(shards);
        json_decref(a);
        json_decref(b);
    }
    fixture_close(&f);
}

static void refused_at_once(const fixture *f, const char *arguments, const char *sentence)
{
    call c = {.r = {.command = HTH_COMMAND_TRAIN, .arguments = arguments, .done = call_done}};
    assert_err(hth_engine_submit(f->engine, &c.r), HTH_EINVAL, sentence);
}

static void refused(void **state)
{
    fixture f;
    char data[200];
    devices_open(&f, "cpu:0,mem=128MiB,threads=1 cpu:1,mem=4KiB,threads=1", false);
    prepare(&f, &mlp, data);
    refused_at_once(&f, "{\"model\":\"mlp_sgd\",\"on\":\"cpu:0,cpu:7\"}", "no device 'cpu:7'");
    refused_at_once(&f, "{\"model\":\"mlp_sgd\",\"on\":\"cpu:0,\"}", "no device ''");
    refused_at_once(&f, "{\"model\":\"mlp_sgd\",\"on\":\"cpu:1,cpu:1\"}",
                    "names device cpu:1 twice");
    refused_at_once(&f, "{\"model\":\"mlp_sgd\",\"on\":\"all\",\"batch\":1}",
                    "a batch of 1 samples is too small for 2 devices");
    expect(&f, &mlp, data, "{\"on\": \"all\", \"accumulate\": 2}", "and several devices");
    expect(&f, &mlp, data, "{\"on\": \"all\", \"loss\": \"other\"}", "loss");
    static const char *const shards[] = {
        "3",           "[]",           "[[0, 4]]",        "[[0, 2, 1]]",
        "[[0, 4, 0]]", "[[0, 5, -1]]", "[[0, 2.5, 1.5]]", "[[0, 2, 2], [-1, 1, 3]]"};
    for (size_t i = 0; i < sizeof shards / sizeof *shards; i++) {
        char more[80];
        snprintf(more, sizeof more, "{\"on\": \"all\", \"shards\": %s}", shards[i]);
        expect(&f, &mlp, data, more,
               "the samples of each of 2 devices, at first 1 at least, in all 4");
    }
    expect(&f, &mlp, data, "{\"shards\": [[0, 4]]}", "--shards is for several devices");
    // a member's refusal is the job's, whose lead could have gone on
    prepare(&f, &unet, data);
    expect(&f, &unet, data, "{\"on\": \"cpu:0,cpu:1\"}", "device cpu:1: ");
    fixture_close(&f);
}

// A device whose kernels do not run on the host hands in all that it has when its pass has ended,
// and cannot wait in the middle of one.
static void queued(void **state)
{
    static const char *const more[] = {
        "{\"on\": \"all\"}", "{\"on\": \"all\", \"shards\": [[0, 1, 3]], \"budget\": \"60%\"}"};
    fixture f;
    char data[200];
    double want[STEPS];
    devices_open(&f, "cpu:0,mem=128MiB,threads=1 fake:mem=128MiB,seed=3", false);
    prepare(&f, &mlp, data);
    for (int i = 0; i < 2; i++) {
        json_t *doc = train_all(&f, &mlp, data, more[i], want);
        check_losses(mlp.model, more[i], doc, want);
        json_decref(doc);
    }
    expect(&f, &mlp, data, "{\"on\": \"all\", \"sync-bn\": true}",
           "--sync-bn needs CPU devices: device fake");
    fixture_close(&f);
}

// ---- commands

static char *long_job(const training *t, const char *data, const char *name)
{
    char more[160];
    double want[STEPS];
    snprintf(more, sizeof more,
             "{\"on\":\"all\",\"save-as\":\"%s\",\"epochs\":100000,\"sync-bn\":%s}", name,
             t == &mlp ? "false" : "true");
    json_t *args = arguments_of(t, data, more, want);
    char *out = json_dumps(args, JSON_COMPACT);
    json_decref(args);
    return out;
}

// Two groups on the same devices do not wait for each other crosswise; one is paused, goes on, and
// is canceled.
static void commands(void **state)
{
    fixture f;
    char data[200];
    witness one, two;
    hth_err err;
    devices_open(&f, TWO, false);
    prepare(&f, &mlp, data);
    char *first = long_job(&mlp, data, "one"), *second = long_job(&mlp, data, "two");
    train_three_steps(&f, &one, first);
    train_three_steps(&f, &two, second);
    witness_let_go();
    until_step(&f, "one", 10);
    until_step(&f, "two", 10);
    json_t *jobs = ask(&f, "jobs", "{}", &err);
    assert_int_equal(json_array_size(jobs), 2); // no rows for members
    json_decref(jobs);
    json_decref(ask(&f, "pause", "{\"job\":\"two\"}", &err));
    assert_ok(err);
    json_int_t paused = step_of(&f, "two");
    until_step(&f, "one", step_of(&f, "one") + 10);
    assert_int_equal(step_of(&f, "two"), paused);
    json_decref(ask(&f, "resume", "{\"job\":\"two\"}", &err));
    assert_ok(err);
    until_step(&f, "two", paused + 10);
    json_t *row = ask(&f, "job", "{\"job\":\"two\",\"points\":1}", &err);
    assert_int_equal(json_array_size(json_object_get(row, "members")), 2);
    json_decref(row);
    json_decref(ask(&f, "cancel", "{\"job\":\"two\"}", &err));
    assert_int_equal(call_wait(&two.c), HTH_ECANCELED);
    json_decref(ask(&f, "cancel", "{\"job\":\"one\"}", &err));
    assert_int_equal(call_wait(&one.c), HTH_ECANCELED);
    free(first);
    free(second);
    fixture_close(&f);
}

// Members wait for each other in the middle of their passes, but two groups on the same devices do
// not wait crosswise.
static void sync_groups(void **state)
{
    static const char *const names[] = {"one", "two"};
    fixture f;
    char data[200], args[40];
    call c[2];
    hth_err err;
    devices_open(&f, TWO, false);
    prepare(&f, &image_net, data);
    for (int i = 0; i < 2; i++) {
        char *text = long_job(&image_net, data, names[i]);
        paths_named(f.store, text);
        c[i] = (call){.r = {.command = HTH_COMMAND_TRAIN, .arguments = text}};
        call_start(f.engine, &c[i]);
    }
    for (int round = 1; round <= 3; round++) {
        until_step(&f, "one", round * 3);
        until_step(&f, "two", round * 3);
    }
    for (int i = 0; i < 2; i++) {
        snprintf(args, sizeof args, "{\"job\":\"%s\"}", names[i]);
        json_decref(ask(&f, "cancel", args, &err));
        assert_ok(err);
        assert_int_equal(call_wait(&c[i]), HTH_ECANCELED);
        free((char *)c[i].r.arguments);
    }
    fixture_close(&f);
}

// ---- processes

static char *job_text(fixture *f, const training *t, const char *data, const char *more)
{
    double want[STEPS];
    json_t *args = arguments_of(t, data, more, want);
    char *out = json_dumps(args, JSON_COMPACT);
    json_decref(args);
    paths_named(f->store, out);
    return out;
}

static char *job_of(fixture *f, const training *t, const char *data, const char *name,
                    const char *on, const char *reduce, int epochs)
{
    char more[200];
    double want[STEPS];
    snprintf(more, sizeof more,
             "{\"on\":\"%s\",\"save-as\":\"%s\",\"epochs\":%d,\"reduce\":\"%s\",\"sync-bn\":true}",
             on, name, epochs, reduce);
    json_t *args = arguments_of(t, data, more, want);
    if (t != &mlp) { // at a larger rate, rounding decides where this one goes
        json_object_set_new(args, "lr", json_real(0.0005));
    }
    char *out = json_dumps(args, JSON_COMPACT);
    json_decref(args);
    paths_named(f->store, out);
    return out;
}

// Kills the process of device `device` while three train; what comes out is as of one device.
static void kill_one(fixture *f, const training *t, const char *data, int device,
                     const char *reduce, const json_t *alone)
{
    pid_t pid[8];
    char name[20];
    snprintf(name, sizeof name, "%s%d", reduce, device);
    char *args = job_of(f, t, data, name, "all", reduce, t == &mlp ? EPOCHS : EPOCHS_SYNC);
    call c = {.r = {.command = HTH_COMMAND_TRAIN, .arguments = args}};
    call_start(f->engine, &c);
    until_step(f, name, 5);
    assert_int_equal(children_of(getpid(), pid, 8), 3);
    qsort(pid, 3, sizeof *pid, child_by_start);
    kill(pid[device], SIGKILL);
    json_t *doc = finished(&c);
    close_losses(name, alone, doc);
    json_decref(doc);
    free(args);
}

// The third device has other instructions, hence other algorithms, another speed and other shards.
static void kill_both(const training *t)
{
    fixture f;
    char data[200];
    devices_open(&f, THREE ",isa=sse2", true);
    prepare(&f, t, data);
    char *args = job_of(&f, t, data, "alone", "cpu:0", "all", t == &mlp ? EPOCHS : EPOCHS_SYNC);
    call c = {.r = {.command = HTH_COMMAND_TRAIN, .arguments = args}};
    call_start(f.engine, &c);
    json_t *alone = finished(&c);
    kill_one(&f, t, data, 2, "all", alone);
    kill_one(&f, t, data, 0, "all", alone); // the lead
    kill_one(&f, t, data, 2, "ps", alone);
    kill_one(&f, t, data, 0, "ps", alone); // the server
    json_decref(alone);
    free(args);
    fixture_close(&f);
}

static void killed(void **state)
{
    kill_both(&mlp);
}

// Others wait for who is killed in the middle of a pass, too.
static void killed_sync(void **state)
{
    kill_both(&image_net);
}

// until_both waits until both members of a job take part.
static void until_both(fixture *f, const char *job)
{
    uint64_t until = hth_real_after(LIMIT_NS);
    for (size_t joined = 0; joined < 2;) {
        (void)members_of(f, job, &joined);
        assert_true(hth_real_ns() < until);
        nanosleep(&(struct timespec){.tv_nsec = 2000000}, NULL);
    }
}

// kill_child kills a child of this process, and waits until its parent knows.
static void kill_child(pid_t pid)
{
    uint64_t until = hth_real_after(LIMIT_NS);
    kill(pid, SIGKILL);
    while (kill(pid, 0) == 0) {
        assert_true(hth_real_ns() < until);
        nanosleep(&(struct timespec){.tv_nsec = 2000000}, NULL);
    }
}

// Who is left has no memory for the whole batch, and waits for the other one as long as that comes
// again; then the job ends, and its state is stored.
static void left_with_too_much(void **state)
{
    fixture f;
    char data[200], more[120];
    pid_t pid[8];
    devices_open(&f, TWO, true);
    prepare(&f, &unet, data);
    char *args = job_text(&f, &unet, data, "{\"on\":\"cpu:0\",\"budget\":\"1KB\"}");
    call c = {.r = {.command = HTH_COMMAND_TRAIN, .arguments = args}};
    assert_int_equal(call_run(f.engine, &c), HTH_ETOOBIG);
    snprintf(more, sizeof more,
             "{\"on\":\"all\",\"shards\":[[0,2,2]],\"epochs\":100000,\"budget\":\"%.0f\"}",
             0.8 * (double)pl_found(hth_err_detail()));
    free(args);
    args = job_text(&f, &unet, data, more);
    c = (call){.r = {.command = HTH_COMMAND_TRAIN, .arguments = args}};
    call_start(f.engine, &c);
    for (int deaths = 1; deaths <= MOST_DEATHS; deaths++) {
        until_both(&f, "result");
        until_step(&f, "result", step_of(&f, "result") + 20);
        assert_int_equal(children_of(getpid(), pid, 8), 2);
        qsort(pid, 2, sizeof *pid, child_by_start);
        kill_child(pid[1]);
    }
    assert_int_equal(call_wait(&c), HTH_ETOOBIG);
    assert_non_null(strstr(c.r.detail, "does not fit the devices that are left"));
    json_t *kept;
    assert_ok(hth_checkpoint_find(f.store, "result", &kept));
    assert_true(json_integer_value(json_object_get(kept, "step")) >= 20 * MOST_DEATHS);
    json_decref(kept);
    free(args);
    fixture_close(&f);
}

// A server that ends in good order leaves a checkpoint, from which the next one goes on, with the
// devices that it has: one, and again two.
static void restarted(void **state)
{
    static const char *const devices[] = {TWO, "cpu:0,mem=128MiB,threads=1", TWO};
    static const size_t members[] = {2, 0, 2};
    fixture f;
    char data[200];
    hth_err err;
    devices_open(&f, devices[0], false);
    prepare(&f, &mlp, data);
    char *args = job_of(&f, &mlp, data, "made", "all", "all", 100000);
    call c = {.r = {.command = HTH_COMMAND_TRAIN, .arguments = args}};
    call_start(f.engine, &c);
    for (int i = 0; i < 3; i++) {
        if (i > 0) {
            engines_open(&f, devices[i], false);
        }
        until_step(&f, "made", step_of(&f, "made") + 20);
        assert_int_equal(members_of(&f, "made", NULL), members[i]);
        if (i < 2) {
            hth_engine_drain(f.engine);
            hth_engine_close(f.engine);
        }
        if (i == 0) {
            assert_int_equal(call_wait(&c), HTH_ECANCELED);
        }
    }
    json_decref(ask(&f, "cancel", "{\"job\":\"made\"}", &err));
    assert_ok(err);
    free(args);
    fixture_close(&f);
}

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(losses),
        cmocka_unit_test(sync_bn),
        cmocka_unit_test(last_sample),
        cmocka_unit_test(unlike_devices),
        cmocka_unit_test(bits),
        cmocka_unit_test(server),
        cmocka_unit_test(refused),
        cmocka_unit_test(commands),
        cmocka_unit_test(sync_groups),
        cmocka_unit_test(killed),
        cmocka_unit_test(killed_sync),
        cmocka_unit_test(queued),
        cmocka_unit_test(left_with_too_much),
        cmocka_unit_test(restarted),
    };
    if (hth_child_requested(argc, argv)) {
        return hth_child_run(&(hth_child_config){.orphaned = child_orphaned});
    }
    return cmocka_run_group_tests(tests, NULL, NULL);
}
