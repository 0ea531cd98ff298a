// SPDX-License-Identifier: Apache-2.0
// tests/bench/serving.h - what the serving benches share: a hearthd of their own on a store of
// their own, inputs for a model, percentiles, a process's memory.
#ifndef HTH_BENCH_SERVING_H
#define HTH_BENCH_SERVING_H

#include "client/hearth.h"

#include "base/clock.h"

#include <jansson.h>

#include <arpa/inet.h>
#include <dirent.h>
#include <fcntl.h>
#include <signal.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

static inline void check(int failed, const char *what)
{
    if (failed) {
        fprintf(stderr, "%s failed: %s\n", what, hearth_error());
        exit(1);
    }
}

static inline void pause_ns(double ns)
{
    struct timespec t = {(time_t)(ns / 1e9), (long)(ns - (double)(time_t)(ns / 1e9) * 1e9)};
    nanosleep(&t, NULL);
}

typedef struct daemon_ {
    char dir[64], url[96], hearthd[512];
    const char *store; // NULL: in `dir`
    const char *flag;  // one more, "--batch-max=1"; NULL: none
    int port;          // of HTTP, 0: none
    pid_t pid;
} serving;

// serving_begin makes a folder and finds build/hearthd beside build/tests/bench/.
static inline void serving_begin(serving *s)
{
    char self[400];
    ssize_t n = readlink("/proc/self/exe", self, sizeof self - 1);
    check(n < 0, "readlink");
    self[n] = 0;
    for (int up = 0; up < 3; up++) {
        *strrchr(self, '/') = 0;
    }
    *s = (serving){.port = 0};
    snprintf(s->hearthd, sizeof s->hearthd, "%s/hearthd", self);
    strcpy(s->dir, "/tmp/hearth-serving-XXXXXX");
    check(mkdtemp(s->dir) == NULL, "mkdtemp");
    snprintf(s->url, sizeof s->url, "ipc://%s/sock", s->dir);
}

// A port of this machine that nobody listens on now.
static inline int serving_port(void)
{
    struct sockaddr_in a = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    socklen_t n = sizeof a;
    int fd = socket(AF_INET, SOCK_STREAM, 0);
    check(fd < 0 || bind(fd, (struct sockaddr *)&a, n) != 0 ||
              getsockname(fd, (struct sockaddr *)&a, &n) != 0,
          "a port");
    close(fd);
    return ntohs(a.sin_port);
}

static inline void serving_start(serving *s, const char *device, int port)
{
    char store[512], http[64];
    snprintf(store, sizeof store, "%s%s", s->store != NULL ? s->store : s->dir,
             s->store != NULL ? "" : "/store");
    snprintf(http, sizeof http, "127.0.0.1:%d", port);
    s->port = port;
    s->pid = fork();
    if (s->pid == 0) {
        prctl(PR_SET_PDEATHSIG, SIGTERM); // a bench that fails leaves no server
        char *argv[12] = {"hearthd", "--store",  store,         "--listen",
                          s->url,    "--device", (char *)device};
        int n = 7;
        if (s->flag != NULL) {
            argv[n++] = (char *)s->flag;
        }
        if (port > 0) {
            argv[n++] = "--http";
            argv[n++] = http;
        }
        execv(s->hearthd, argv);
        _exit(127);
    }
}

static inline hearth *serving_dial(const serving *s)
{
    hearth *h = NULL;
    for (int i = 0; i < 1000 && hearth_open(s->url, NULL, &h) != HEARTH_OK; i++) {
        pause_ns(1e7);
    }
    check(h == NULL, "connecting");
    return h;
}

static inline void serving_end(serving *s)
{
    char command[96];
    kill(s->pid, SIGTERM);
    waitpid(s->pid, NULL, 0);
    snprintf(command, sizeof command, "rm -rf %.63s", s->dir);
    check(system(command), "removing the store");
}

static inline json_t *serving_ask(hearth *h, const char *what, const char *arguments)
{
    char *text;
    check(hearth_query(h, what, arguments, NULL, NULL, &text) != HEARTH_OK, what);
    json_t *doc = json_loads(text, 0, NULL);
    hearth_free(text);
    check(doc == NULL, what);
    return doc;
}

// The model's first input, for `batch` samples: pseudorandom floats, or zeros of another type.
static inline hearth_tensor serving_input(hearth *h, const char *model, int64_t batch)
{
    char q[256];
    snprintf(q, sizeof q, "{\"model\":\"%s\"}", model);
    json_t *doc = serving_ask(h, "model", q), *d;
    json_t *in = json_array_get(json_object_get(doc, "inputs"), 0);
    hearth_tensor t = {.dtype = HEARTH_F32};
    size_t i, n = 1;
    json_array_foreach(json_object_get(in, "shape"), i, d)
    {
        int64_t v = json_integer_value(d);
        int64_t unknown = i == 0 ? batch : 224;
        t.shape[t.rank] = v >= 0 ? v : unknown;
        n *= (size_t)t.shape[t.rank++];
    }
    const char *type = json_string_value(json_object_get(in, "datatype"));
    bool floats = strcmp(type, "FP32") == 0;
    check(!floats && strcmp(type, "INT64") != 0, "an input of floats or indices");
    t.dtype = floats ? HEARTH_F32 : HEARTH_I64;
    t.name = strdup(json_string_value(json_object_get(in, "name")));
    t.bytes = n * (floats ? sizeof(float) : sizeof(int64_t));
    t.data = calloc(1, t.bytes + 1);
    check(t.data == NULL, "memory");
    for (size_t k = 0; k < n && floats; k++) {
        ((float *)t.data)[k] = (float)((k * 2654435761u >> 8) % 2048) / 1024 - 1;
    }
    json_decref(doc);
    return t;
}

typedef struct series {
    double *ms;
    int n, cap;
} series;

static inline void series_add(series *s, double ms)
{
    if (s->n == s->cap) {
        s->cap = s->cap > 0 ? 2 * s->cap : 1024;
        s->ms = realloc(s->ms, (size_t)s->cap * sizeof *s->ms);
        check(s->ms == NULL, "memory");
    }
    s->ms[s->n++] = ms;
}

static inline int by_ms(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

static inline double series_part(series *s, double part)
{
    check(s->n == 0, "measuring");
    qsort(s->ms, (size_t)s->n, sizeof *s->ms, by_ms);
    return s->ms[(int)((double)(s->n - 1) * part)];
}

static inline long process_kib(pid_t pid, const char *key);

// .. of the children that a thread has made.
static inline long children_kib(pid_t pid, const char *thread, const char *key)
{
    char path[64];
    long kib = 0;
    int child;
    snprintf(path, sizeof path, "/proc/%d/task/%.16s/children", (int)pid, thread);
    FILE *f = fopen(path, "r");
    while (f != NULL && fscanf(f, "%d", &child) == 1) {
        kib += process_kib(child, key);
    }
    if (f != NULL) {
        fclose(f);
    }
    return kib;
}

// Kilobytes of `key` in a process and its children: the engine may be one. "VmRSS:", "RssAnon:",
// ..: what they share counts for each; "Pss:": for each its part.
static inline long process_kib(pid_t pid, const char *key)
{
    char path[64], line[256];
    long kib = 0;
    snprintf(path, sizeof path, "/proc/%d/task", (int)pid);
    DIR *tasks = opendir(path);
    for (struct dirent *d; tasks != NULL && (d = readdir(tasks)) != NULL;) {
        kib += d->d_name[0] != '.' ? children_kib(pid, d->d_name, key) : 0;
    }
    if (tasks != NULL) {
        closedir(tasks);
    }
    snprintf(path, sizeof path, "/proc/%d/%s", (int)pid,
             strcmp(key, "Pss:") == 0 ? "smaps_rollup" : "status");
    FILE *f = fopen(path, "r");
    while (f != NULL && fgets(line, sizeof line, f) != NULL) {
        if (strncmp(line, key, strlen(key)) == 0) {
            kib += strtol(line + strlen(key), NULL, 10);
        }
    }
    if (f != NULL) {
        fclose(f);
    }
    return kib;
}

#endif
