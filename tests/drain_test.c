// SPDX-License-Identifier: Apache-2.0
// hearthd under SIGTERM: what it accepted is answered, what comes later is refused in a sentence,
// training jobs are saved and gone on with, and a request that takes longer than drain.seconds is
// canceled.
#include "base/test.h"

#include "client/hearth.h"
#include "client/npy.h"
#include "tests/rig/free_port.h"

#include <jansson.h>

#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#define CALLERS 8

static char dir[] = "/tmp/hearth-drain-XXXXXX", url[100], store[100], log_path[100];
static const char *build;

static void nap(long ms)
{
    nanosleep(&(struct timespec){ms / 1000, ms % 1000 * 1000000}, NULL);
}

static double now(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + (double)t.tv_nsec / 1e9;
}

static hearth *dial(void)
{
    hearth *h;
    const hearth_options o = {.no_shared_memory = 1}; // a request of a call, and nothing else
    for (int i = 0; hearth_open(url, &o, &h) != HEARTH_OK; i++) {
        assert_true(i < 2400);
        nap(50);
    }
    return h;
}

// http: as an argument, NULL: none.
static pid_t start_http(const char *drain_seconds, const char *http)
{
    char program[300];
    snprintf(program, sizeof program, "%s/hearthd", build);
    pid_t pid = fork();
    if (pid == 0) {
        int log = open(log_path, O_CREAT | O_TRUNC | O_WRONLY, 0600);
        dup2(log, STDERR_FILENO);
        dup2(log, STDOUT_FILENO);
        execl(program, "hearthd", "--store", store, "--listen", url, "--log-level", "info",
              "--drain-seconds", drain_seconds, http, (char *)NULL);
        _exit(127);
    }
    hearth_close(dial());
    return pid;
}

static pid_t start(const char *drain_seconds)
{
    return start_http(drain_seconds, NULL);
}

static int end(pid_t pid)
{
    int status;
    assert_int_equal(waitpid(pid, &status, 0), pid);
    return WIFEXITED(status) ? WEXITSTATUS(status) : 1000 + WTERMSIG(status);
}

// log_text is all that was logged so far.
static const char *log_text(void)
{
    static char text[1 << 16];
    FILE *f = fopen(log_path, "r");
    assert_non_null(f);
    text[fread(text, 1, sizeof text - 1, f)] = 0;
    fclose(f);
    return text;
}

// log_number finds "key=N" in the log.
static long log_number(const char *key)
{
    const char *text = log_text(), *at = strstr(text, key);
    if (at == NULL) {
        fail_msg("no %s in the log: %s", key, text);
    }
    return strtol(at + strlen(key), NULL, 10);
}

// ---- inference under load

static hearth_tensor images;
static atomic_long n_ok, n_refused, n_gone, n_other, n_callers;

// Asks until it is refused, or nobody is there any more.
static void *caller(void *arg)
{
    hearth *h = dial();
    for (bool first = true;; first = false) {
        hearth_tensor *y;
        int n;
        hearth_status s = hearth_infer(h, "digits", &images, 1, &y, &n);
        if (s == HEARTH_OK) {
            atomic_fetch_add(&n_ok, 1);
            atomic_fetch_add(&n_callers, first);
            hearth_tensors_free(y, n);
            continue;
        }
        if (s == HEARTH_ECANCELED && strstr(hearth_error(), "the server is stopping")) {
            atomic_fetch_add(&n_refused, 1);
        } else {
            atomic_fetch_add(s == HEARTH_EIO ? &n_gone : &n_other, 1);
        }
        break;
    }
    hearth_close(h);
    return NULL;
}

static void test_load(void **state)
{
    pthread_t threads[CALLERS];
    pid_t pid = start("30");
    for (int i = 0; i < CALLERS; i++) {
        assert_int_equal(pthread_create(&threads[i], NULL, caller, NULL), 0);
    }
    for (int i = 0; atomic_load(&n_ok) < 100 || atomic_load(&n_callers) < CALLERS; i++) {
        assert_true(i < 12000);
        nap(10);
    }
    kill(pid, SIGTERM);
    for (int i = 0; i < CALLERS; i++) {
        pthread_join(threads[i], NULL);
    }
    assert_int_equal(end(pid), 0);
    assert_int_equal(n_other, 0);
    assert_int_equal(n_refused + n_gone, CALLERS);
    // every answer that the server gave has arrived, and it answered all that it took
    assert_int_equal(log_number(" refused="), n_refused);
    assert_int_equal(log_number(" answered="), n_ok + n_refused);
}

// ---- training

static atomic_int trained;
static hearth_status train_status;
static char train_error[600];

static void *trainer(void *arg)
{
    hearth *h = dial();
    char *json, cwd[300], q[800];
    assert_non_null(getcwd(cwd, sizeof cwd));
    snprintf(q, sizeof q,
             "{\"model\":\"new\",\"data\":\"%s/tests/data/digits/train.safetensors\",\"loss\":"
             "\"softmax-xent\",\"lr\":0.01,\"batch\":16,\"epochs\":%d,\"save-as\":\"trained\"}",
             cwd, *(const int *)arg);
    train_status = hearth_query(h, "train", q, NULL, NULL, &json);
    snprintf(train_error, sizeof train_error, "%s", hearth_error());
    if (train_status == HEARTH_OK) {
        hearth_free(json);
    }
    atomic_store(&trained, 1);
    hearth_close(h);
    return NULL;
}

// job asks for a number or, in `state`, the state of the job; -1: there is none.
static double job(hearth *h, const char *key, char state[40])
{
    char *json;
    if (hearth_query(h, "job", "{\"job\":\"trained\"}", NULL, NULL, &json) != HEARTH_OK) {
        return -1;
    }
    json_t *o = json_loads(json, 0, NULL);
    hearth_free(json);
    const char *word = json_string_value(json_object_get(o, "state"));
    snprintf(state, 40, "%s", word != NULL ? word : "");
    double v = json_number_value(json_object_get(o, key));
    json_decref(o);
    return v;
}

static void test_training(void **state)
{
    const int epochs = 20;
    char word[40] = "";
    long long step = -1;
    pthread_t thread;
    pid_t pid = start("30");
    hearth *h = dial();
    assert_int_equal(pthread_create(&thread, NULL, trainer, (void *)&epochs), 0);
    for (int i = 0; job(h, "step", word) < 20; i++) {
        assert_true(i < 12000 && !atomic_load(&trained));
        nap(10);
    }
    kill(pid, SIGTERM);
    pthread_join(thread, NULL);
    hearth_close(h);
    assert_int_equal(end(pid), 0);
    assert_int_equal(train_status, HEARTH_ECANCELED);
    assert_int_equal(sscanf(train_error,
                            "the server is stopping: job 'trained' is saved after step %lld",
                            &step),
                     1);
    assert_true(step >= 20);
    assert_non_null(strstr(train_error, "resumes when hearthd starts again"));
    pid = start("30");
    h = dial();
    for (int i = 0; strcmp(word, "finished") != 0; i++) { // nobody asked for it
        assert_true(i < 20000);
        double at = job(h, "step", word);
        assert_true(at < 0 || at >= (double)step);
        nap(20);
    }
    hearth_close(h);
    kill(pid, SIGTERM);
    assert_int_equal(end(pid), 0);
}

// ---- a request that takes too long

static hearth_status bench_status;
static atomic_int bench_runs, bench_enough;

static int bench_progress(void *ctx, const char *what, uint64_t done, uint64_t total)
{
    atomic_store(&bench_runs, 1);
    return atomic_load(&bench_enough);
}

static void *bencher(void *arg)
{
    hearth *h = dial();
    char *json;
    bench_status = hearth_query(h, "bench", "{\"model\":\"digits\",\"batch\":4,\"seconds\":600}",
                                bench_progress, NULL, &json);
    hearth_close(h);
    return NULL;
}

static void test_limit(void **state)
{
    pthread_t thread;
    pid_t pid = start("12"); // canceled after 10 s, and 2 s to say so
    assert_int_equal(pthread_create(&thread, NULL, bencher, NULL), 0);
    for (int i = 0; atomic_load(&bench_runs) == 0; i++) {
        assert_true(i < 12000);
        nap(10);
    }
    double began = now();
    kill(pid, SIGTERM);
    pthread_join(thread, NULL);
    assert_int_equal(end(pid), 0);
    assert_int_equal(bench_status, HEARTH_ECANCELED);
    assert_true(now() - began > 9 && now() - began < 300);
}

// ---- HTTP

// http_ask sends a question over a connection; the status, 0: it ends without one.
static int http_ask(int fd)
{
    static const char text[] = "GET /v2 HTTP/1.1\r\nHost: x\r\n\r\n";
    char answer[4000];
    ssize_t n = send(fd, text, sizeof text - 1, MSG_NOSIGNAL);
    n = n > 0 ? recv(fd, answer, sizeof answer - 1, 0) : n;
    answer[n > 0 ? n : 0] = 0;
    return n > 12 ? atoi(answer + 9) : 0;
}

// As long as a bench goes on, connections that there are may ask: each is told.
static void test_http(void **state)
{
    enum { ASK = 5 };
    struct sockaddr_in a = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    char http[40];
    int fd[ASK];
    pthread_t thread;
    int port = free_port(1);
    a.sin_port = htons((uint16_t)port);
    snprintf(http, sizeof http, "--http=127.0.0.1:%d", port);
    pid_t pid = start_http("400", http);
    for (int i = 0; strstr(log_text(), " ready: ") == NULL; i++) { // HTTP listens behind the socket
        assert_true(i < 12000);
        nap(10);
    }
    for (int i = 0; i < ASK; i++) {
        fd[i] = socket(AF_INET, SOCK_STREAM, 0);
        assert_int_equal(connect(fd[i], (struct sockaddr *)&a, sizeof a), 0);
        assert_int_equal(http_ask(fd[i]), 200);
    }
    bench_runs = 0;
    assert_int_equal(pthread_create(&thread, NULL, bencher, NULL), 0);
    for (int i = 0; atomic_load(&bench_runs) == 0; i++) {
        assert_true(i < 12000);
        nap(10);
    }
    kill(pid, SIGTERM);
    for (int i = 0; strstr(log_text(), "event=draining") == NULL; i++) {
        assert_true(i < 12000);
        nap(10);
    }
    int before = 0; // HTTP refuses right behind that line
    while (http_ask(fd[0]) == 200) {
        before++;
    }
    for (int i = 1; i < ASK; i++) {
        assert_int_equal(http_ask(fd[i]), 503);
    }
    for (int i = 0; i < ASK; i++) {
        close(fd[i]);
    }
    atomic_store(&bench_enough, 1);
    pthread_join(thread, NULL);
    assert_int_equal(bench_status, HEARTH_ECANCELED);
    assert_int_equal(end(pid), 0);
    assert_int_equal(log_number(" refused="), ASK);
    assert_true(log_number(" answered=") >= 2 * ASK + before);
}

static int setup(void **state)
{
    hearth *h;
    build = getenv("HEARTH_BUILD") != NULL ? getenv("HEARTH_BUILD") : "build";
    assert_non_null(mkdtemp(dir));
    snprintf(url, sizeof url, "ipc://%s/sock", dir);
    snprintf(store, sizeof store, "%s/store", dir);
    snprintf(log_path, sizeof log_path, "%s/log", dir);
    const hearth_options o = {.store = store};
    assert_int_equal(hearth_open("inproc://", &o, &h), HEARTH_OK);
    assert_int_equal(
        hearth_import(h, "digits", "tests/data/digits/digits.onnx", -1, NULL, NULL, NULL),
        HEARTH_OK);
    assert_int_equal(
        hearth_import(h, "new", "tests/data/digits/untrained.onnx", -1, NULL, NULL, NULL),
        HEARTH_OK);
    hearth_close(h);
    return hth_npy_read("tests/data/digits/images.npy", &images);
}

static int teardown(void **state)
{
    hth_free(images.data);
    return test_remove(dir);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_load),
        cmocka_unit_test(test_training),
        cmocka_unit_test(test_limit),
        cmocka_unit_test(test_http),
    };
    return cmocka_run_group_tests(tests, setup, teardown);
}
