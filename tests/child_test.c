// SPDX-License-Identifier: Apache-2.0
// hearthd whose engine is a child process: what clients see when it dies, what is left when hearthd
// is killed, and what becomes of a killed client's memory.
#include "base/test.h"

#include "base/spin.h"
#include "client/hearth.h"
#include "client/npy.h"
#include "tests/rig/children.h"
#include "tests/rig/free_port.h"

#include <arpa/inet.h>
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#define LIMIT_NS 300000000000u // of everything that is waited for; far more than it takes

static char dir[] = "/tmp/hearth-child-XXXXXX", url[100], store[100], log_path[100], config[100];
static const char *build;
static int port;
static pid_t daemon_pid;
static hearth_tensor images;
static uint64_t overslept_ns; // by all naps: what other processes took of the machine

static void nap(void)
{
    uint64_t from = hth_real_ns();
    nanosleep(&(struct timespec){.tv_nsec = 2000000}, NULL);
    uint64_t took = hth_real_ns() - from;
    overslept_ns += took > 3000000 ? took - 3000000 : 0;
}

static hearth *dial(int no_shared_memory)
{
    hearth *h;
    const hearth_options o = {.no_shared_memory = no_shared_memory};
    uint64_t until = hth_real_after(LIMIT_NS);
    while (hearth_open(url, &o, &h) != HEARTH_OK) {
        assert_true(hth_real_ns() < until);
        nap();
    }
    return h;
}

static bool log_has(const char *a, const char *b)
{
    char line[4096];
    bool found = false;
    FILE *f = fopen(log_path, "r");
    while (fgets(line, sizeof line, f) != NULL) {
        found = found || (strstr(line, a) != NULL && strstr(line, b) != NULL);
    }
    fclose(f);
    return found;
}

static void start_with(const char *first, const char *second)
{
    char program[300], http[40];
    snprintf(program, sizeof program, "%s/hearthd", build);
    snprintf(http, sizeof http, "127.0.0.1:%d", port);
    daemon_pid = fork();
    if (daemon_pid == 0) {
        int log = open(log_path, O_CREAT | O_TRUNC | O_APPEND | O_WRONLY, 0600);
        dup2(log, STDERR_FILENO);
        dup2(log, STDOUT_FILENO);
        execl(program, "hearthd", "--store", store, "--listen", url, "--http", http, "--config",
              config, "--engine-process", "child", "--device", first,
              second != NULL ? "--device" : (char *)NULL, second, (char *)NULL);
        _exit(127);
    }
    hearth_close(dial(1));
    while (!log_has("hearthd", "ready:")) {                      // and only then takes signals
        assert_int_equal(waitpid(daemon_pid, NULL, WNOHANG), 0); // another one has the address
        nap();
    }
}

static void start(void)
{
    start_with("cpu:mem=512MiB,threads=2", NULL);
}

static int end(int number)
{
    int status;
    kill(daemon_pid, number);
    assert_int_equal(waitpid(daemon_pid, &status, 0), daemon_pid);
    return WIFEXITED(status) ? WEXITSTATUS(status) : 1000 + WTERMSIG(status);
}

// engine_pid is hearthd's child.
static pid_t engine_pid(void)
{
    uint64_t until = hth_real_after(LIMIT_NS);
    pid_t pid;
    while ((pid = child_of(daemon_pid)) == 0) {
        assert_true(hth_real_ns() < until);
        nap();
    }
    return pid;
}

static bool is_alive(pid_t pid)
{
    char path[64], text[400] = "";
    snprintf(path, sizeof path, "/proc/%d/stat", (int)pid);
    FILE *f = fopen(path, "r");
    if (f == NULL) {
        return false;
    }
    size_t n = fread(text, 1, sizeof text - 1, f);
    fclose(f);
    text[n] = 0;
    const char *state = strrchr(text, ')');
    return state != NULL && state[2] != 'Z' && state[2] != 'X';
}

// http_send returns the status, 0: nobody is there, and the beginning of the answer.
static int http_send(const char *head, const char *body, size_t bytes, char *answer, size_t cap)
{
    struct sockaddr_in a = {.sin_family = AF_INET, .sin_port = htons((uint16_t)port)};
    inet_pton(AF_INET, "127.0.0.1", &a.sin_addr);
    int fd = socket(AF_INET, SOCK_STREAM, 0);
    if (connect(fd, (struct sockaddr *)&a, sizeof a) != 0) { // not yet
        close(fd);
        return 0;
    }
    size_t got = 0, sent = 0;
    assert_true(write(fd, head, strlen(head)) == (ssize_t)strlen(head));
    while (sent < bytes) {
        ssize_t n = write(fd, body + sent, bytes - sent);
        assert_true(n > 0);
        sent += (size_t)n;
    }
    for (ssize_t n; got < cap - 1 && (n = read(fd, answer + got, cap - 1 - got)) > 0;) {
        got += (size_t)n;
    }
    answer[got] = 0;
    close(fd);
    return got > 12 ? atoi(answer + 9) : 0;
}

static int http_get(const char *path, char *answer, size_t cap)
{
    char head[200];
    snprintf(head, sizeof head, "GET %s HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n", path);
    return http_send(head, NULL, 0, answer, cap);
}

static void wait_ready(void)
{
    char answer[2000];
    uint64_t until = hth_real_after(LIMIT_NS);
    while (http_get("/v2/health/ready", answer, sizeof answer) != 200) {
        assert_true(hth_real_ns() < until);
        nap();
    }
}

static void infer(hearth *h)
{
    hearth_tensor *y;
    int n;
    assert_int_equal(hearth_infer(h, "digits", &images, 1, &y, &n), HEARTH_OK);
    assert_int_equal(y[0].shape[0], images.shape[0]);
    hearth_tensors_free(y, n);
}

static void infer_once(void)
{
    hearth *h = dial(0);
    infer(h);
    hearth_close(h);
}

// Not ready while there is no engine, alive all the time, ready again.
static void test_ready_tells_the_truth(void **state)
{
    char answer[2000];
    start();
    wait_ready();
    bool seen = false;
    uint64_t until = hth_real_after(LIMIT_NS);
    for (pid_t last = 0; !seen;) { // pauses grow, so that it is seen sooner or later
        assert_true(hth_real_ns() < until);
        pid_t pid = child_of(daemon_pid);
        if (pid != 0 && pid != last) {
            kill(pid, SIGKILL);
            last = pid;
        }
        if (http_get("/v2/health/ready", answer, sizeof answer) != 200) {
            assert_non_null(strstr(answer, "HTTP/1.1 503"));
            assert_non_null(strstr(answer, "the engine process is being restarted"));
            seen = true;
        }
        assert_int_equal(http_get("/v2/health/live", answer, sizeof answer), 200);
    }
    wait_ready();
    infer_once();
    assert_int_equal(end(SIGTERM), 0);
}

typedef struct large_call {
    int status;
    size_t samples;
    char answer[4000];
} large_call;

// 25,000 samples are a tenth of a second's work.
static void *large_main(void *arg)
{
    large_call *c = arg;
    size_t n = c->samples, bytes = n * 256;
    char json[300], head[400], *body = calloc(1, bytes + sizeof json);
    int m = snprintf(json, sizeof json,
                     "{\"inputs\":[{\"name\":\"image\",\"datatype\":\"FP32\",\"shape\":[%zu,1,8,8],"
                     "\"parameters\":{\"binary_data_size\":%zu}}],\"outputs\":[{\"name\":"
                     "\"logits\",\"parameters\":{\"binary_data\":true}}]}",
                     n, bytes);
    memcpy(body, json, (size_t)m);
    snprintf(head, sizeof head,
             "POST /v2/models/digits/infer HTTP/1.1\r\nHost: x\r\nConnection: close\r\n"
             "Content-Length: %zu\r\nInference-Header-Content-Length: %d\r\n\r\n",
             bytes + (size_t)m, m);
    c->status = http_send(head, body, bytes + (size_t)m, c->answer, sizeof c->answer);
    free(body);
    return NULL;
}

// What ran gets 503 and a sentence; who comes later is answered.
static void test_http_gets_503(void **state)
{
    static large_call c = {.samples = 25000};
    uint64_t until = hth_real_after(LIMIT_NS);
    int round = 10;
    do { // it may have been killed before it began, or after its end
        pthread_t thread;
        if (round > 10) { // a server whose engine has died before may say "too often"
            assert_int_equal(end(SIGTERM), 0);
        }
        start();
        wait_ready();
        assert_true(hth_real_ns() < until);
        assert_int_equal(pthread_create(&thread, NULL, large_main, &c), 0);
        for (int i = 0; i < round % 40; i++) {
            nap();
        }
        round++;
        kill(engine_pid(), SIGKILL);
        pthread_join(thread, NULL);
        if (c.status != 200 && c.status != 503) {
            fail_msg("%d: %s", c.status, c.answer);
        }
    } while (c.status == 200);
    if (strstr(c.answer, "the engine process died while this request ran (signal 9); "
                         "it is being restarted") == NULL) {
        fail_msg("%s", c.answer);
    }
    hearth *h = dial(1);
    infer(h);
    hearth_close(h);
    assert_int_equal(end(SIGTERM), 0);
}

// An answer that is on its way when the engine's process dies comes whole: it is more than the
// socket takes, and its client reads on behind the death.
static void test_answer_outlives(void **state)
{
    enum { N = 2000000 };
    char head[400], json[300];
    float *sent = malloc(N * 4), *got = malloc(N * 4 + 4000);
    struct sockaddr_in a = {.sin_family = AF_INET, .sin_port = htons((uint16_t)port)};
    int few = 4096, fd = socket(AF_INET, SOCK_STREAM, 0);
    for (int i = 0; i < N; i++) {
        sent[i] = (float)i;
    }
    int m = snprintf(json, sizeof json,
                     "{\"inputs\":[{\"name\":\"INPUT0\",\"datatype\":\"FP32\",\"shape\":[%d],"
                     "\"parameters\":{\"binary_data_size\":%d}}],\"parameters\":"
                     "{\"binary_data_output\":true}}",
                     N, N * 4);
    int n = snprintf(head, sizeof head,
                     "POST /v2/models/ident/infer HTTP/1.1\r\nHost: x\r\nConnection: close\r\n"
                     "Content-Length: %d\r\nInference-Header-Content-Length: %d\r\n\r\n",
                     N * 4 + m, m);
    start();
    wait_ready();
    inet_pton(AF_INET, "127.0.0.1", &a.sin_addr);
    setsockopt(fd, SOL_SOCKET, SO_RCVBUF, &few, sizeof few);
    assert_int_equal(connect(fd, (struct sockaddr *)&a, sizeof a), 0);
    assert_int_equal(send(fd, head, (size_t)n, 0), n);
    assert_int_equal(send(fd, json, (size_t)m, 0), m);
    assert_int_equal(send(fd, sent, N * 4, 0), N * 4); // blocks until all is taken
    size_t come = (size_t)read(fd, got, 1);
    assert_int_equal(come, 1);
    pid_t pid = engine_pid();
    kill(pid, SIGKILL);
    for (pid_t is = pid; is == pid || is == 0; is = child_of(daemon_pid)) {
        nap();
    }
    wait_ready();
    infer_once();
    for (ssize_t k; (k = read(fd, (char *)got + come, N * 4 + 4000 - come)) > 0;) {
        come += (size_t)k;
    }
    assert_true(come > N * 4);
    assert_int_equal(atoi((char *)got + 9), 200);
    assert_memory_equal((char *)got + come - N * 4, sent, N * 4);
    close(fd);
    free(sent);
    free(got);
    assert_int_equal(end(SIGTERM), 0);
}

// hearthd is killed in the midst of work: its child is gone at once, and the store is whole.
static void test_no_orphan(void **state)
{
    for (int round = 0; round < 3; round++) {
        start();
        hearth *h = dial(0);
        infer(h);
        pid_t pid = engine_pid();
        assert_int_equal(end(SIGKILL), 1000 + SIGKILL);
        uint64_t until = hth_real_after(LIMIT_NS);
        while (is_alive(pid)) {
            assert_true(hth_real_ns() < until);
            nap();
        }
        hearth_close(h);
    }
    start();
    infer_once();
    assert_int_equal(end(SIGTERM), 0);
}

// shared_maps counts the mappings of shared memory in a process of the server.
static int shared_maps(pid_t pid)
{
    char path[64], line[1000];
    snprintf(path, sizeof path, "/proc/%d/maps", (int)pid);
    FILE *f = fopen(path, "r");
    assert_non_null(f);
    int n = 0;
    while (fgets(line, sizeof line, f) != NULL) {
        n += strstr(line, "memfd:") != NULL;
    }
    fclose(f);
    return n;
}

// waited_ns is how long the threads of hearthd and of its engine could have run while others had
// the processors; 0 where the kernel does not count it.
static uint64_t waited_ns(void)
{
    const pid_t pid[] = {daemon_pid, engine_pid()};
    uint64_t sum = 0;
    for (int i = 0; i < 2; i++) {
        char path[400];
        snprintf(path, sizeof path, "/proc/%d/task", (int)pid[i]);
        DIR *d = opendir(path);
        for (struct dirent *e; d != NULL && (e = readdir(d)) != NULL;) {
            snprintf(path, sizeof path, "/proc/%d/task/%s/schedstat", (int)pid[i], e->d_name);
            FILE *f = e->d_name[0] != '.' ? fopen(path, "r") : NULL;
            unsigned long long waited = 0;
            if (f != NULL) {
                sum += fscanf(f, "%*u %llu", &waited) == 1 ? waited : 0;
                fclose(f);
            }
        }
        if (d != NULL) {
            closedir(d);
        }
    }
    return sum;
}

// client_main asks for ever, with an input in memory that it shares with the server.
static int client_main(const char *server)
{
    hearth *h;
    hearth_tensor *y, in = {.dtype = HEARTH_F32, .rank = 4, .shape = {20000, 1, 8, 8}};
    int n;
    in.bytes = (size_t)in.shape[0] * 256;
    void *data;
    if (hearth_open(server, NULL, &h) != HEARTH_OK ||
        hearth_buffer_alloc(h, in.bytes, &data) != HEARTH_OK) {
        return 1;
    }
    in.data = memset(data, 0, in.bytes);
    while (hearth_infer(h, "digits", &in, 1, &y, &n) == HEARTH_OK) {
        hearth_tensors_free(y, n);
        if (write(STDOUT_FILENO, "x", 1) != 1) {
            break;
        }
    }
    return 1;
}

// A killed client's memory is gone from both processes in less than a second of a machine that has
// time for them, and so is what its request held.
static void test_killed_client(void **state)
{
    start();
    wait_ready();
    int ours = shared_maps(daemon_pid), engines = shared_maps(engine_pid());
    int ready[2];
    assert_int_equal(pipe(ready), 0);
    pid_t client = fork();
    if (client == 0) {
        dup2(ready[1], STDOUT_FILENO);
        execl("/proc/self/exe", "child_test", url, (char *)NULL);
        _exit(127);
    }
    close(ready[1]);
    char x[3];
    assert_int_equal(read(ready[0], x, 1), 1);
    assert_true(shared_maps(daemon_pid) > ours && shared_maps(engine_pid()) > engines);
    kill(client, SIGKILL);
    assert_int_equal(waitpid(client, NULL, 0), client);
    overslept_ns = 0;
    uint64_t from = hth_real_ns(), waited = waited_ns();
    while (shared_maps(daemon_pid) > ours || shared_maps(engine_pid()) > engines) {
        uint64_t took = hth_real_ns() - from, now = waited_ns();
        assert_true(took < 1000000000u + overslept_ns + (now > waited ? now - waited : 0));
        nap();
    }
    close(ready[0]);
    assert_int_equal(end(SIGTERM), 0);
}

static void write_config(const char *level)
{
    FILE *f = fopen(config, "w");
    fprintf(f, "log.level = %s\n", level);
    fclose(f);
}

// A reload reaches the child, whose lines are in the same log.
static void test_reload(void **state)
{
    char cwd[300], q[800], *json;
    write_config("warn");
    start();
    write_config("info");
    kill(daemon_pid, SIGHUP);
    assert_non_null(getcwd(cwd, sizeof cwd));
    uint64_t until = hth_real_after(LIMIT_NS);
    hearth *h = dial(1);
    while (!log_has("process=engine", "event=put")) {
        assert_true(hth_real_ns() < until);
        snprintf(q, sizeof q,
                 "{\"model\":\"new\",\"data\":\"%s/tests/data/digits/train.safetensors\",\"loss\":"
                 "\"softmax-xent\",\"lr\":0.01,\"batch\":256,\"epochs\":1,\"save-as\":\"t%d\"}",
                 cwd, (int)(hth_real_ns() % 1000000));
        assert_int_equal(hearth_query(h, "train", q, NULL, NULL, &json), HEARTH_OK);
        hearth_free(json);
    }
    hearth_close(h);
    assert_int_equal(end(SIGTERM), 0);
}

// Two devices: all doors serve while one's process is away, and say what is known of both.
static void test_two_devices(void **state)
{
    char answer[20000], *json;
    start_with("cpu:0,mem=256MiB,threads=1", "cpu:1,mem=512MiB,threads=1");
    wait_ready();
    hearth *ring = dial(0), *socket = dial(1);
    static large_call c = {.samples = 2500};
    for (int round = 0; round < 20; round++) {
        infer(ring);
        infer(socket);
        large_main(&c);
        assert_true(c.status == 200 || c.status == 503);
        assert_int_equal(http_get("/v2/health/live", answer, sizeof answer), 200);
        if (round % 4 == 3) {
            kill(engine_pid(), SIGKILL); // one of them
        }
        assert_int_equal(http_get("/v2/models/digits/ready", answer, sizeof answer), 200);
    }
    assert_int_equal(
        hearth_query(socket, "load", "{\"model\":\"new\",\"on\":\"cpu:0\"}", NULL, NULL, &json),
        HEARTH_OK);
    assert_non_null(strstr(json, "\"device\":\"cpu:0\""));
    hearth_free(json);
    assert_int_equal(hearth_query(socket, "devices", NULL, NULL, NULL, &json), HEARTH_OK);
    assert_non_null(strstr(json, "cpu:0"));
    assert_non_null(strstr(json, "cpu:1"));
    hearth_free(json);
    assert_int_equal(http_get("/v2/models/digits/stats", answer, sizeof answer), 200);
    assert_int_equal(http_get("/hearth/stats", answer, sizeof answer) / 100 == 5, 0);
    hearth_close(ring);
    hearth_close(socket);
    assert_int_equal(end(SIGTERM), 0);
}

static int setup(void **state)
{
    hearth *h;
    build = getenv("HEARTH_BUILD") != NULL ? getenv("HEARTH_BUILD") : "build";
    assert_non_null(mkdtemp(dir));
    port = free_port(1);
    snprintf(url, sizeof url, "ipc://%s/sock", dir);
    snprintf(store, sizeof store, "%s/store", dir);
    snprintf(log_path, sizeof log_path, "%s/log", dir);
    snprintf(config, sizeof config, "%s/conf", dir);
    write_config("info");
    const hearth_options o = {.store = store};
    assert_int_equal(hearth_open("inproc://", &o, &h), HEARTH_OK);
    assert_int_equal(
        hearth_import(h, "digits", "tests/data/digits/digits.onnx", -1, NULL, NULL, NULL),
        HEARTH_OK);
    assert_int_equal(
        hearth_import(h, "new", "tests/data/digits/untrained.onnx", -1, NULL, NULL, NULL),
        HEARTH_OK);
    assert_int_equal(hearth_import(h, "ident", "tests/data/http/ident.onnx", -1, NULL, NULL, NULL),
                     HEARTH_OK);
    hearth_close(h);
    return hth_npy_read("tests/data/digits/images.npy", &images);
}

static int teardown(void **state)
{
    hth_free(images.data);
    return test_remove(dir);
}

int main(int argc, char **argv)
{
    if (argc == 2) {
        return client_main(argv[1]);
    }
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_ready_tells_the_truth), cmocka_unit_test(test_http_gets_503),
        cmocka_unit_test(test_answer_outlives),       cmocka_unit_test(test_no_orphan),
        cmocka_unit_test(test_killed_client),         cmocka_unit_test(test_reload),
        cmocka_unit_test(test_two_devices),
    };
    return cmocka_run_group_tests(tests, setup, teardown);
}
