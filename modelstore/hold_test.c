// SPDX-License-Identifier: Apache-2.0
// Holds are shared or alone, among threads and processes, and end with who has them.
#include "modelstore/hold.h"
#include "tests/rig/store_rig.h"

#include <dirent.h>
#include <pthread.h>
#include <sys/wait.h>
#include <unistd.h>

static void shared_and_alone(void **state)
{
    int a, b, c;
    assert_ok(hth_store_hold(store, "x", false, &a));
    assert_ok(hth_store_hold(store, "x", false, &b));
    assert_err(hth_store_hold(store, "x", true, &c), HTH_EBUSY, "in use");
    assert_int_equal(c, -1);
    assert_ok(hth_store_hold(store, "y", true, &c));
    hth_store_let_go(c);
    hth_store_let_go(a);
    assert_err(hth_store_hold(store, "x", true, &c), HTH_EBUSY, "in use");
    hth_store_let_go(b);
    assert_ok(hth_store_hold(store, "x", true, &c));
    assert_err(hth_store_hold(store, "x", false, &a), HTH_EBUSY, "in use");
    hth_store_let_go(c);
    hth_store_let_go(-1);
}

// holds_files counts the files of locks.
static int holds_files(void)
{
    char path[100];
    int n = 0;
    snprintf(path, sizeof path, "%s/" HTH_STORE_HOLDS, store_rig_path);
    DIR *d = opendir(path);
    assert_non_null(d);
    for (const struct dirent *e = readdir(d); e != NULL; e = readdir(d)) {
        n += e->d_name[0] != '.';
    }
    closedir(d);
    return n;
}

static void what_is_gone_leaves_no_lock(void **state)
{
    int a, b, before = holds_files();
    assert_ok(hth_store_hold(store, "gone", true, &a));
    assert_int_equal(holds_files(), before + 1);
    hth_store_hold_end(store, "gone", a);
    assert_int_equal(holds_files(), before);
    hth_store_hold_end(store, "gone", -1);
    // another one of its name is held as any
    assert_ok(hth_store_hold(store, "gone", false, &a));
    assert_err(hth_store_hold(store, "gone", true, &b), HTH_EBUSY, "in use");
    hth_store_let_go(a);
    assert_ok(hth_store_hold(store, "gone", true, &a));
    hth_store_hold_end(store, "gone", a);
}

// Threads that hold a name alone, and remove its lock: one at a time has it.
static _Atomic int held, wrong;

static void *holds_alone(void *ctx)
{
    int fd;
    for (int n = 0; n < 2000; n++) {
        if (hth_store_hold(store, "contended", true, &fd) == HTH_OK) {
            wrong += held++ != 0;
            held--;
            hth_store_hold_end(store, "contended", fd);
        }
    }
    return NULL;
}

static void one_at_a_time(void **state)
{
    pthread_t thread[4];
    for (int i = 0; i < 4; i++) {
        assert_int_equal(pthread_create(&thread[i], NULL, holds_alone, NULL), 0);
    }
    for (int i = 0; i < 4; i++) {
        pthread_join(thread[i], NULL);
    }
    assert_int_equal(wrong, 0);
}

static void dead_processes_hold_nothing(void **state)
{
    int to_child[2], to_parent[2], fd;
    char byte;
    assert_int_equal(pipe(to_child) | pipe(to_parent), 0);
    pid_t pid = fork();
    if (pid == 0) {
        byte = hth_store_hold(store, "z", false, &fd) == HTH_OK ? 'y' : 'n';
        ssize_t done = write(to_parent[1], &byte, 1);
        close(to_child[1]);
        done += read(to_child[0], &byte, 1);
        _exit((int)done);
    }
    close(to_child[0]);
    assert_int_equal(read(to_parent[0], &byte, 1), 1);
    assert_int_equal(byte, 'y');
    assert_err(hth_store_hold(store, "z", true, &fd), HTH_EBUSY, "in use");
    close(to_child[1]);
    assert_int_equal(waitpid(pid, NULL, 0), pid);
    assert_ok(hth_store_hold(store, "z", true, &fd));
    hth_store_let_go(fd);
    close(to_parent[0]);
    close(to_parent[1]);
}

static void read_only_stores_are_not_held(void **state)
{
    hth_store *other;
    int fd;
    hth_store_close(store);
    assert_ok(hth_store_open(store_rig_path, false, true, &other));
    assert_err(hth_store_hold(other, "x", false, &fd), HTH_EDENIED, "read-only");
    hth_store_close(other);
    assert_ok(hth_store_open(store_rig_path, false, false, &store));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(shared_and_alone), cmocka_unit_test(what_is_gone_leaves_no_lock),
        cmocka_unit_test(one_at_a_time), cmocka_unit_test(dead_processes_hold_nothing),
        cmocka_unit_test(read_only_stores_are_not_held)};
    return cmocka_run_group_tests(tests, store_rig_open, store_rig_close);
}
