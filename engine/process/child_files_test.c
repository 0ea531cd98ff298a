// SPDX-License-Identifier: Apache-2.0
// Both sides in one process: what hearthd opens, and what a child that says nonsense gets.
#include "engine/process/child_files.h"

#include "base/settings.h"
#include "base/test.h"
#include "base/thread.h"
#include "modelstore/paths.h"

#include <fcntl.h>
#include <limits.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

typedef struct fixture {
    char dir[64], store[80], file[80];
    hth_store *s;
    int ends[2]; // hearthd's, the child's
    pthread_t thread;
} fixture;

static void serve(void *arg)
{
    fixture *f = arg;
    hth_child_files_serve(f->ends[0], f->store);
    shutdown(f->ends[0], SHUT_RDWR);
}

static void fixture_open(fixture *f)
{
    strcpy(f->dir, "/tmp/hearth-opener-XXXXXX");
    assert_non_null(mkdtemp(f->dir));
    snprintf(f->store, sizeof f->store, "%s/store", f->dir);
    snprintf(f->file, sizeof f->file, "%s/file", f->dir);
    int fd = open(f->file, O_CREAT | O_WRONLY, 0600);
    assert_int_equal(write(fd, "0123", 4), 4);
    close(fd);
    assert_ok(hth_store_open(f->store, true, false, &f->s));
    assert_ok(hth_paths_begin(f->s, NULL, 0));
    assert_int_equal(socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, f->ends), 0);
    assert_ok(hth_thread_start("opener", serve, f, &f->thread));
    hth_child_files_use(f->ends[1]);
}

static void fixture_close(fixture *f)
{
    hth_opener_set(NULL, NULL);
    shutdown(f->ends[0], SHUT_RDWR);
    hth_thread_join(f->thread);
    close(f->ends[0]);
    close(f->ends[1]);
    hth_store_close(f->s);
    assert_int_equal(test_remove(f->dir), 0);
}

static void test_opens(void **state)
{
    fixture f;
    hth_file file;
    char text[5] = "", fifo[80];
    int fd;
    fixture_open(&f);
    int before = test_open_fds();
    assert_err(hth_open_data(f.file, &file), HTH_EDENIED, "was not named by a user");
    assert_err(hth_open_scratch(f.dir, &fd), HTH_EDENIED, "was not named by a user");
    assert_ok(hth_paths_keep(f.s, (hth_named_path){HTH_OPEN_DATA, f.file}));
    assert_ok(hth_paths_keep(f.s, (hth_named_path){HTH_OPEN_SCRATCH, f.dir}));
    assert_ok(hth_open_data(f.file, &file));
    assert_int_equal(file.bytes, 4);
    assert_ok(hth_file_read(&file, "it", 0, text, 4));
    assert_string_equal(text, "0123");
    assert_int_equal(fcntl(file.fd, F_GETFL) & O_ACCMODE, O_RDONLY);
    hth_file_close(&file);
    assert_ok(hth_open_scratch(f.dir, &fd));
    assert_int_equal(write(fd, "x", 1), 1);
    close(fd);
    // what was named and is not there, or is something else, says so as it would here
    unlink(f.file);
    assert_err(hth_open_data(f.file, &file), HTH_ENOENT, "cannot open");
    snprintf(fifo, sizeof fifo, "%s/fifo", f.dir);
    assert_int_equal(mkfifo(fifo, 0600), 0);
    assert_ok(hth_paths_keep(f.s, (hth_named_path){HTH_OPEN_DATA, fifo}));
    assert_err(hth_open_data(fifo, &file), HTH_EINVAL, "a FIFO, not a regular file");
    assert_int_equal(test_open_fds(), before);
    fixture_close(&f);
}

static void test_tenants(void **state)
{
    fixture f;
    hth_file file;
    fixture_open(&f);
    assert_ok(hth_setting_set("tenant.file", f.file));
    assert_ok(hth_open_data(f.file, &file));
    hth_file_close(&file);
    hth_setting_reset();
    assert_err(hth_open_data(f.file, &file), HTH_EDENIED, "was not named by a user");
    fixture_close(&f);
}

// After nonsense nothing is opened any more.
static void test_nonsense(void **state)
{
    struct {
        uint32_t use;
        char path[PATH_MAX + 100];
    } q;
    const size_t head = sizeof q.use;
    static const struct {
        uint32_t use;
        size_t bytes; // of the path; its last one is no zero where `bare`
        bool bare;
    } bad[] = {{HTH_N_OPEN_USES, 5, false},
               {UINT32_MAX, 5, false},
               {HTH_OPEN_DATA, 5, true},
               {HTH_OPEN_DATA, 0, false},
               {HTH_OPEN_DATA, PATH_MAX + 1, false},
               {HTH_OPEN_DATA, PATH_MAX + 100, true}};
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        fixture f;
        char c;
        hth_file file;
        fixture_open(&f);
        assert_ok(hth_paths_keep(f.s, (hth_named_path){HTH_OPEN_DATA, f.file}));
        q.use = bad[i].use;
        memset(q.path, 'x', sizeof q.path);
        if (!bad[i].bare && bad[i].bytes > 0) {
            q.path[bad[i].bytes - 1] = 0;
        }
        size_t all = head + bad[i].bytes;
        assert_int_equal(send(f.ends[1], &q, all, MSG_NOSIGNAL), all);
        assert_int_equal(recv(f.ends[1], &c, 1, 0), 0); // hung up
        assert_err(hth_open_data(f.file, &file), HTH_EIO, "hearthd does not answer");
        fixture_close(&f);
    }
    fixture f;
    hth_file file;
    fixture_open(&f);
    memset(q.path, 'x', PATH_MAX + 1);
    q.path[PATH_MAX] = 0;
    assert_err(hth_open_data(q.path, &file), HTH_EINVAL, "is too long");
    fixture_close(&f);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_opens), cmocka_unit_test(test_tenants),
                                       cmocka_unit_test(test_nonsense)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
