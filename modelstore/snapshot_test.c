// SPDX-License-Identifier: Apache-2.0
// A store that this process may only read, while another one writes it. Writers are children: one
// process has one environment of an LMDB file.
#include "modelstore/snapshot.h"

#include "modelstore/pages.h"
#include "modelstore/store_impl.h"
#include "modelstore/store_test.h"

#include <fcntl.h>
#include <sys/wait.h>

#define ROUNDS  300
#define COMMITS 4   // of a round: the second one of them reuses the pages of the one that is copied
#define ROWS    40  // that say the same, in every commit
#define BYTES   700 // of a row: all of them are some pages

typedef struct writer {
    pid_t pid;
    int ask, done; // a byte there begins a round; one here ends it
} writer;

static hth_err put_rows(hth_txn *txn, void *ctx)
{
    char value[BYTES];
    memset(value, *(const unsigned char *)ctx, sizeof value);
    for (uint32_t i = 0; i < ROWS; i++) {
        HTH_TRY(hth_txn_put(txn, HTH_TABLE_TEXTS, &i, sizeof i, value, sizeof value));
    }
    return HTH_OK;
}

// Commits for each byte that comes, until there are no more.
static void writer_main(const char *path, int ask, int done)
{
    hth_store *s;
    unsigned char n = 0, byte;
    bool good = hth_store_open(path, true, false, &s) == HTH_OK;
    do {
        for (int i = 0; i < COMMITS && good; i++) {
            n++;
            good = hth_index_write(&s->index, put_rows, &n) == HTH_OK;
        }
        good = good && write(done, "", 1) == 1;
    } while (good && read(ask, &byte, 1) == 1);
    _exit(good ? 0 : 1);
}

static void await(int fd)
{
    char byte;
    assert_int_equal(read(fd, &byte, 1), 1);
}

static void writer_start(writer *w, const char *path)
{
    int ask[2], done[2];
    assert_int_equal(pipe(ask), 0);
    assert_int_equal(pipe(done), 0);
    w->pid = fork();
    if (w->pid == 0) {
        close(ask[1]);
        close(done[0]);
        writer_main(path, ask[0], done[1]);
    }
    close(ask[0]);
    close(done[1]);
    w->ask = ask[1];
    w->done = done[0];
    await(w->done); // the store is there
}

static void writer_end(writer *w)
{
    int status;
    close(w->ask);
    assert_int_equal(waitpid(w->pid, &status, 0), w->pid);
    assert_true(WIFEXITED(status) && WEXITSTATUS(status) == 0);
    close(w->done);
}

// All pages are what LMDB takes them for, and all rows are of one commit.
static void snapshot_is_whole(int fd)
{
    char name[40];
    MDB_env *env;
    MDB_txn *txn;
    MDB_dbi dbi;
    snprintf(name, sizeof name, "/proc/self/fd/%d", fd);
    assert_int_equal(mdb_env_create(&env), 0);
    assert_int_equal(mdb_env_set_maxdbs(env, HTH_N_TABLES), 0);
    assert_int_equal(mdb_env_open(env, name, MDB_RDONLY | MDB_NOLOCK | MDB_NOSUBDIR, 0), 0);
    assert_int_equal(mdb_txn_begin(env, NULL, MDB_RDONLY, &txn), 0);
    assert_ok(hth_pages_check(env, txn));
    assert_int_equal(mdb_dbi_open(txn, "texts", 0, &dbi), 0);
    const unsigned char *first = NULL;
    for (uint32_t i = 0; i < ROWS; i++) {
        MDB_val key = {sizeof i, &i}, v;
        assert_int_equal(mdb_get(txn, dbi, &key, &v), 0);
        assert_int_equal(v.mv_size, BYTES);
        first = first != NULL ? first : v.mv_data;
        for (size_t k = 0; k < BYTES; k++) {
            assert_int_equal(((const unsigned char *)v.mv_data)[k], *first);
        }
    }
    mdb_txn_abort(txn);
    mdb_env_close(env);
}

static void test_while_written(void **state)
{
    const char *path = ((test_dir *)*state)->path;
    char file[100];
    writer w;
    snprintf(file, sizeof file, "%s/index/data.mdb", path);
    writer_start(&w, path);
    for (int i = 0; i < ROUNDS; i++) {
        int fd;
        assert_int_equal(write(w.ask, "", 1), 1);
        assert_ok(hth_snapshot_take(file, &fd)); // now, while it commits
        await(w.done);
        snapshot_is_whole(fd);
        close(fd);
    }
    writer_end(&w);
}

static void test_absent(void **state)
{
    int fd;
    assert_err(hth_snapshot_take("/nonexistent/data.mdb", &fd), HTH_ENOENT, "opening the store's");
    assert_int_equal(fd, -1);
}

static hth_err get_row(hth_txn *txn, void *ctx)
{
    uint32_t i = ROWS - 1;
    MDB_val v;
    HTH_TRY(hth_txn_get(txn, HTH_TABLE_TEXTS, &i, sizeof i, &v));
    *(unsigned char *)ctx = *(const unsigned char *)v.mv_data;
    return HTH_OK;
}

// What somebody sees who has no right to write: 0, or the line where that was not so. Root gives
// its rights up.
static int reads_only(const char *path, const writer *w)
{
    hth_store *s;
    hth_put_result r;
    unsigned char before, after;
    if (geteuid() == 0 && setresuid(65534, 65534, 65534) != 0) {
        return __LINE__;
    }
    if (hth_store_open(path, true, false, &s) != HTH_EDENIED) {
        return __LINE__;
    }
    if (hth_store_open_as_it_may(path, &s) != HTH_OK ||
        hth_index_read(&s->index, get_row, &before) != HTH_OK) {
        return __LINE__;
    }
    char byte;
    if (write(w->ask, "", 1) != 1 || read(w->done, &byte, 1) != 1) {
        return __LINE__;
    }
    if (hth_index_read(&s->index, get_row, &after) != HTH_OK || after != before) {
        return __LINE__; // as it was when it was opened
    }
    if (test_put(s, "m", 1, &r) != HTH_EDENIED ||
        strstr(hth_err_detail(), "needs write permission") == NULL) {
        return __LINE__;
    }
    hth_store_close(s);
    if (hth_store_open_as_it_may(path, &s) != HTH_OK ||
        hth_index_read(&s->index, get_row, &after) != HTH_OK || after != before + COMMITS) {
        return __LINE__;
    }
    hth_store_close(s);
    return 0;
}

static void test_no_permission(void **state)
{
    const char *path = ((test_dir *)*state)->path;
    char command[200];
    int status;
    writer w;
    writer_start(&w, path);
    snprintf(command, sizeof command, "chmod -R a-w,a+rX '%s'", path); // the writer has it open
    assert_int_equal(system(command), 0);
    pid_t pid = fork();
    if (pid == 0) {
        int line = reads_only(path, &w);
        if (line != 0) {
            print_message("# line %d: %s\n", line, hth_err_detail());
        }
        _exit(line != 0);
    }
    assert_int_equal(waitpid(pid, &status, 0), pid);
    assert_true(WIFEXITED(status) && WEXITSTATUS(status) == 0);
    snprintf(command, sizeof command, "chmod -R u+w '%s'", path);
    assert_int_equal(system(command), 0);
    writer_end(&w);
}

// What is not there is not made, and says why it could not be.
static void test_nothing_there(void **state)
{
    const char *path = ((test_dir *)*state)->path;
    char below[100];
    hth_store *s;
    int status;
    assert_int_equal(chmod(path, 0555), 0);
    snprintf(below, sizeof below, "%s/new", path);
    pid_t pid = fork();
    if (pid == 0) {
        bool good = (geteuid() != 0 || setresuid(65534, 65534, 65534) == 0) &&
                    hth_store_open_as_it_may(below, &s) == HTH_EDENIED;
        _exit(good && access(below, F_OK) != 0 ? 0 : 1);
    }
    assert_int_equal(waitpid(pid, &status, 0), pid);
    assert_true(WIFEXITED(status) && WEXITSTATUS(status) == 0);
    assert_int_equal(chmod(path, 0755), 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(test_while_written, test_setup, test_teardown),
        cmocka_unit_test_setup_teardown(test_absent, test_setup, test_teardown),
        cmocka_unit_test_setup_teardown(test_no_permission, test_setup, test_teardown),
        cmocka_unit_test_setup_teardown(test_nothing_there, test_setup, test_teardown),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
