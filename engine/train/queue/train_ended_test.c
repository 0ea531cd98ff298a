// SPDX-License-Identifier: Apache-2.0
// Jobs that end at the same instant, in processes and in threads: each has a record of its own,
// with its own losses.
#include "base/test.h"

#include "base/thread.h"
#include "engine/train/checkpoint/checkpoint.h"
#include "engine/train/queue/train_ended.h"
#include "runtime/job_index.h"

#include <sys/wait.h>
#include <unistd.h>

#define DEVICES 3
#define JOBS    8 // of a device

static char dir[64];

// What one device does: jobs "DEVICE.JOB", whose loss says which they are.
static hth_err end_jobs(hth_store *store, int device)
{
    hth_err err = HTH_OK;
    for (int i = 0; i < JOBS && err == HTH_OK; i++) {
        char name[32];
        snprintf(name, sizeof name, "%d.%d", device, i);
        json_t *row = json_pack("{s:s}", "job", name);
        json_t *state = json_pack("{s:[[i, i]]}", "history", device * JOBS + i, 1);
        err = hth_ended_add(store, row, state);
        json_decref(row);
        json_decref(state);
    }
    return err;
}

static void check(hth_store *store)
{
    bool seen[DEVICES * JOBS + 1] = {false};
    json_t *list = json_array(), *row;
    size_t i;
    assert_ok(hth_ended_list(store, list));
    assert_int_equal(json_array_size(list), DEVICES * JOBS);
    json_array_foreach(list, i, row)
    {
        json_int_t id = json_integer_value(json_object_get(row, "id"));
        assert_true(id >= 1 && id <= DEVICES * JOBS && !seen[id]);
        seen[id] = true;
    }
    json_decref(list);
    for (int k = 0; k < DEVICES * JOBS; k++) {
        char name[32];
        snprintf(name, sizeof name, "%d.%d", k / JOBS, k % JOBS);
        assert_ok(hth_ended_find(store, name, true, &row));
        const json_t *loss = json_array_get(json_object_get(row, "history"), 0);
        assert_int_equal(json_integer_value(json_array_get(loss, 0)), k);
        json_decref(row);
    }
}

static int setup(void **state)
{
    strcpy(dir, "/tmp/hearth-ended-XXXXXX");
    return mkdtemp(dir) == NULL;
}

static int teardown(void **state)
{
    return test_remove(dir);
}

// A process waits for `gate` to be closed by all that could write to it.
static void device_process(int gate, int device)
{
    hth_store *s;
    char none;
    hth_err err;
    HTH_GOTO(hth_store_open(dir, true, false, &s), done);
    if (read(gate, &none, 1) != 0) {
        HTH_GOTO(HTH_EIO, done);
    }
    err = end_jobs(s, device);
done:
    hth_store_close(s);
    _exit(err);
}

static void of_processes(void **state)
{
    hth_store *s;
    pid_t pid[DEVICES];
    int gate[2];
    assert_int_equal(pipe(gate), 0);
    for (int i = 0; i < DEVICES; i++) {
        pid[i] = fork();
        if (pid[i] == 0) {
            close(gate[1]);
            device_process(gate[0], i);
        }
    }
    close(gate[0]);
    close(gate[1]);
    for (int i = 0; i < DEVICES; i++) {
        int status;
        assert_int_equal(waitpid(pid[i], &status, 0), pid[i]);
        assert_int_equal(status, 0);
    }
    assert_ok(hth_store_open(dir, true, false, &s));
    check(s);
    hth_store_close(s);
}

typedef struct device_thread {
    hth_store *store;
    int device;
    hth_err err;
} device_thread;

static void device_main(void *arg)
{
    device_thread *d = arg;
    d->err = end_jobs(d->store, d->device);
}

static void of_threads(void **state)
{
    hth_store *s;
    pthread_t thread[DEVICES];
    device_thread d[DEVICES];
    assert_ok(hth_store_open(dir, true, false, &s));
    for (int i = 0; i < DEVICES; i++) {
        d[i] = (device_thread){s, i, HTH_OK};
        assert_ok(hth_thread_start("device", device_main, &d[i], &thread[i]));
    }
    for (int i = 0; i < DEVICES; i++) {
        hth_thread_join(thread[i]);
        assert_int_equal(d[i].err, HTH_OK);
    }
    check(s);
    hth_store_close(s);
}

// A job that a killed server has lost is among those that ended, once; others are not.
static void of_a_killed_server(void **state)
{
    hth_store *s;
    uint64_t id;
    json_t *row, *list = json_array();
    assert_ok(hth_store_open(dir, true, false, &s));
    assert_ok(hth_job_index_add(s, "unseen", "alice", &id)); // no queue had it
    assert_ok(hth_job_index_add(s, "kept", "alice", &id));
    assert_ok(hth_job_index_set(s, id, json_pack("{s:i}", "attempts", 1)));
    json_t *args =
        json_pack("{s:s, s:s, s:I}", "save-as", "kept", "tenant", "alice", "id", (json_int_t)id);
    assert_ok(hth_checkpoint_accept(s, "kept", args));
    json_decref(args);
    assert_ok(hth_job_index_add(s, "gone", "alice", &id));
    assert_ok(hth_job_index_set(s, id, json_pack("{s:i, s:i}", "attempts", 1, "started", 7)));
    assert_ok(hth_ended_lost(s));
    assert_ok(hth_ended_lost(s)); // the next start
    assert_ok(hth_ended_list(s, list));
    assert_int_equal(json_array_size(list), 1);
    json_decref(list);
    assert_ok(hth_ended_find(s, "gone", false, &row));
    assert_int_equal(json_integer_value(json_object_get(row, "id")), id);
    assert_string_equal(json_string_value(json_object_get(row, "tenant")), "alice");
    assert_string_equal(json_string_value(json_object_get(row, "state")), "canceled");
    assert_string_equal(json_string_value(json_object_get(row, "why")),
                        "its server ended, and nothing of it was stored");
    assert_int_equal(json_integer_value(json_object_get(row, "started")), 7);
    assert_true(json_integer_value(json_object_get(row, "ended_ns")) > 7);
    assert_true(json_is_false(json_object_get(row, "resumable")));
    json_decref(row);
    hth_store_close(s);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(of_processes, setup, teardown),
        cmocka_unit_test_setup_teardown(of_threads, setup, teardown),
        cmocka_unit_test_setup_teardown(of_a_killed_server, setup, teardown),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
