// SPDX-License-Identifier: Apache-2.0
// An engine in this process: its settings, a store that is not kept, its log, and who else it
// serves.
#include "base/log.h"
#include "base/settings.h"
#include "client/hearth.h"
#include "tests/rig/fake_engine.h"
#include "tests/rig/server_rig.h"

#include <dirent.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

typedef struct fixture {
    char dir[64], store[96];
} fixture;

static int setup(void **state)
{
    fixture *f = hth_calloc(1, sizeof *f);
    strcpy(f->dir, "/tmp/hearth-test-XXXXXX");
    assert_non_null(mkdtemp(f->dir));
    snprintf(f->store, sizeof f->store, "%s/store", f->dir);
    assert_int_equal(setenv("TMPDIR", f->dir, 1), 0);
    *state = f;
    return 0;
}

static int teardown(void **state)
{
    fixture *f = *state;
    hth_setting_reset();
    unsetenv("TMPDIR");
    assert_int_equal(test_remove(f->dir), 0);
    hth_free(f);
    return 0;
}

static hearth_status open_with(const char *store, const char *const *settings, size_t n, hearth **h)
{
    hearth_embed_options o = {
        .size = sizeof o, .store = store, .settings = settings, .n_settings = n};
    return hearth_embed(&o, h);
}

static void refused(hearth_status got, hearth_status want, const char *part)
{
    assert_int_equal(got, want);
    if (strstr(hearth_error(), part) == NULL) {
        fail_msg("'%s' is not in: %s", part, hearth_error());
    }
}

static void answers(hearth *h)
{
    float x = 7;
    hearth_tensor in = {
        .name = "x", .dtype = HEARTH_F32, .rank = 1, .shape = {1}, .data = &x, .bytes = sizeof x};
    hearth_tensor *out;
    int n;
    assert_int_equal(hearth_infer(h, "m", &in, 1, &out, &n), HEARTH_OK);
    assert_true(n == 1 && *(const float *)out[0].data == 7);
    hearth_tensors_free(out, n);
}

static void test_options(void **state)
{
    fixture *f = *state;
    hearth *h;
    refused(hearth_embed(NULL, &h), HEARTH_EINVAL, "a store");
    assert_null(h);
    hearth_embed_options o = {.size = sizeof o};
    refused(hearth_embed(&o, &h), HEARTH_EINVAL, "a store");
    o = (hearth_embed_options){.store = f->store}; // as the first version had it
    assert_int_equal(hearth_embed(&o, &h), HEARTH_OK);
    hearth_close(h);
    struct {
        hearth_embed_options o;
        uint64_t more;
    } newer = {{.size = sizeof newer, .store = f->store}, 0};
    assert_int_equal(hearth_embed(&newer.o, &h), HEARTH_OK);
    hearth_close(h);
    newer.more = 1;
    refused(hearth_embed(&newer.o, &h), HEARTH_ENOTSUP, "a newer hearth.h");
    assert_null(h);
    assert_int_equal(open_with(f->store, NULL, 0, &h), HEARTH_OK);
    answers(h);
    hearth_close(h);
    assert_int_equal(access(f->store, F_OK), 0); // it is kept
}

static void test_settings(void **state)
{
    fixture *f = *state;
    static const char *const unknown[] = {"queue.lenght=7"}, *const wrong[] = {"queue.length=0"},
                             *const plain[] = {"queue.length"}, *const seven[] = {"queue.length=7"},
                             *const eight[] = {"queue.length=8"},
                             *const live[] = {"queue.timeout_us=9"};
    hearth *h, *other;
    refused(open_with(f->store, unknown, 1, &h), HEARTH_ENOENT, "queue.lenght");
    refused(open_with(f->store, wrong, 1, &h), HEARTH_EINVAL, "queue.length");
    refused(open_with(f->store, plain, 1, &h), HEARTH_EINVAL, "name=value");
    assert_int_equal(open_with(f->store, seven, 1, &h), HEARTH_OK);
    assert_int_equal(hth_setting_int(HTH_SET_QUEUE_LENGTH), 7);
    assert_int_equal(open_with(f->store, seven, 1, &other), HEARTH_OK); // the same value
    hearth_close(other);
    refused(open_with(f->store, eight, 1, &other), HEARTH_EBUSY, "another value");
    assert_null(other);
    assert_int_equal(hth_setting_int(HTH_SET_QUEUE_LENGTH), 7);
    assert_int_equal(open_with(f->store, live, 1, &other), HEARTH_OK);
    assert_int_equal(hth_setting_int(HTH_SET_QUEUE_TIMEOUT_US), 9);
    hearth_close(other);
    hearth_close(h);
    assert_int_equal(open_with(f->store, eight, 1, &h), HEARTH_OK); // nobody is left
    hearth_close(h);
}

// ---- a store that is not kept

// folders counts stores in memory, and stores the path of the last one.
static int folders(const fixture *f, char *path, size_t cap)
{
    DIR *d = opendir(f->dir);
    int n = 0;
    for (struct dirent *e; (e = readdir(d)) != NULL;) {
        if (strncmp(e->d_name, "hearth-memory-", 14) == 0) {
            snprintf(path, cap, "%s/%s", f->dir, e->d_name);
            n++;
        }
    }
    closedir(d);
    return n;
}

static void test_memory(void **state)
{
    fixture *f = *state;
    char path[512], first[512];
    hearth *h, *other;
    assert_int_equal(open_with(":memory:", NULL, 0, &h), HEARTH_OK);
    answers(h);
    assert_int_equal(folders(f, first, sizeof first), 1);
    struct stat st;
    assert_int_equal(stat(first, &st), 0);
    assert_int_equal(st.st_mode & 0777, 0700); // nobody else's
    assert_int_equal(open_with(":memory:", NULL, 0, &other), HEARTH_OK);
    assert_int_equal(folders(f, path, sizeof path), 2); // the first one is in use
    hearth_close(other);
    assert_int_equal(folders(f, path, sizeof path), 1);
    answers(h);
    hearth_close(h);
    assert_int_equal(folders(f, path, sizeof path), 0);
}

// What a process that was killed has left goes with the next one that is opened.
static void test_memory_left(void **state)
{
    fixture *f = *state;
    char path[512];
    hearth *h;
    pid_t p = fork();
    if (p == 0) {
        _exit(open_with(":memory:", NULL, 0, &h) == HEARTH_OK ? 0 : 1); // never closed
    }
    int status;
    assert_int_equal(waitpid(p, &status, 0), p);
    assert_int_equal(status, 0);
    assert_int_equal(folders(f, path, sizeof path), 1);
    assert_int_equal(open_with(":memory:", NULL, 0, &h), HEARTH_OK);
    assert_int_equal(folders(f, path, sizeof path), 1);
    hearth_close(h);
    assert_int_equal(folders(f, path, sizeof path), 0);
}

// A folder that others may write to is nobody's to remove by its path.
static void test_memory_of_others(void **state)
{
    fixture *f = *state;
    char folder[128], lock[160];
    hearth *h;
    snprintf(folder, sizeof folder, "%s/hearth-memory-other", f->dir);
    snprintf(lock, sizeof lock, "%s/in-use", folder);
    assert_int_equal(mkdir(folder, 0700), 0);
    assert_int_equal(chmod(folder, 0777), 0);
    FILE *file = fopen(lock, "we");
    assert_non_null(file);
    fclose(file);
    assert_int_equal(open_with(":memory:", NULL, 0, &h), HEARTH_OK);
    hearth_close(h);
    assert_int_equal(access(lock, F_OK), 0);
    assert_int_equal(chmod(folder, 0700), 0); // this user's alone: it was left behind
    assert_int_equal(open_with(":memory:", NULL, 0, &h), HEARTH_OK);
    hearth_close(h);
    assert_int_equal(access(folder, F_OK), -1);
}

static void test_memory_nowhere(void **state)
{
    fixture *f = *state;
    char nowhere[96];
    hearth *h;
    snprintf(nowhere, sizeof nowhere, "%s/absent", f->dir);
    assert_int_equal(setenv("TMPDIR", nowhere, 1), 0);
    refused(open_with(":memory:", NULL, 0, &h), HEARTH_ENOENT, "absent");
    assert_null(h);
}

// ---- others

static void test_listens(void **state)
{
    fixture *f = *state;
    char url[128], setting[160];
    hearth *h, *other;
    snprintf(url, sizeof url, "ipc://%s/sock", f->dir);
    snprintf(setting, sizeof setting, "listen=%s", url);
    const char *settings[] = {setting};
    assert_int_equal(open_with(":memory:", settings, 1, &h), HEARTH_OK);
    assert_int_equal(hearth_open(url, NULL, &other), HEARTH_OK);
    answers(other);
    hearth_close(other);
    hearth *second;
    assert_int_equal(open_with(":memory:", settings, 1, &second), HEARTH_EBUSY); // it is taken
    assert_null(second);
    answers(h);
    hearth_close(h);
    assert_int_equal(hearth_open(url, NULL, &other), HEARTH_EIO);

    const char *many[] = {setting, setting, setting, setting, setting,
                          setting, setting, setting, setting, setting};
    refused(open_with(":memory:", many, 10, &h), HEARTH_EINVAL, "addresses");
}

typedef struct log {
    int n;
    char last[256];
} log;

static void log_take(void *ctx, const char *level, const char *event, const char *text)
{
    log *l = ctx;
    l->n++;
    if (strcmp(event, "listening") == 0) {
        snprintf(l->last, sizeof l->last, "%s %s", level, text);
    }
}

static void test_log(void **state)
{
    fixture *f = *state;
    static const char *const settings[] = {"log.level=info"};
    log l = {.n = 0};
    hearth *h;
    hearth_embed_options o = {.size = sizeof o,
                              .store = f->store,
                              .settings = settings,
                              .n_settings = 1,
                              .log = log_take,
                              .log_ctx = &l};
    assert_int_equal(hearth_embed(&o, &h), HEARTH_OK);
    hearth_close(h);
    hth_log_sink(NULL, NULL);
    assert_true(l.n > 0);
    assert_non_null(strstr(l.last, "info url=inproc://"));
}

// A request that the server has no memory for is answered all the same: nobody waits for ever.
static void test_without_memory(void **state)
{
    fixture *f = *state;
    hearth *h;
    hearth_embed_options o = {.store = f->store, .timeout_ms = 5000};
    assert_int_equal(hearth_embed(&o, &h), HEARTH_OK);
    bool reached = true;
    uint64_t nth;
    for (nth = 1; reached; nth++) {
        char *json;
        uint64_t before = hth_alloc_count();
        hth_fault_alloc(nth);
        hearth_status s = hearth_query(h, "models", NULL, NULL, NULL, &json);
        hth_fault_alloc(0);
        reached = hth_alloc_count() - before >= nth;
        if (s == HEARTH_OK) {
            hearth_free(json);
        } else if (s != HEARTH_ENOMEM) {
            fail_msg("allocation %llu: %s", (unsigned long long)nth, hearth_error());
        }
    }
    assert_true(nth > 4);
    answers(h);
    hearth_close(h);
}

int main(void)
{
#define T(f) cmocka_unit_test_setup_teardown(f, setup, teardown)
    const struct CMUnitTest tests[] = {
        T(test_memory_left),    T(test_options),        T(test_settings),
        T(test_memory),         T(test_memory_nowhere), T(test_memory_of_others),
        T(test_without_memory), T(test_listens),        T(test_log),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
