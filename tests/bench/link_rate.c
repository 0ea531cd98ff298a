// SPDX-License-Identifier: Apache-2.0
// A CPU device's set link (cpu:link=RATE): the rate that large copies have, each direction alone and
// both at once, and what of a core their threads use.
//
// usage: link_rate [GB/s ..]; without: 0.1 to 3. Fails where a rate is more than 2 % off.
#include "base/clock.h"
#include "device/device.h"

#include <dirent.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define BUFFER  ((size_t)64 << 20) // of each direction: in no cache
#define SECONDS 1.0
#define OFF     0.02

static void check(hth_err err, const char *what)
{
    if (err != HTH_OK) {
        fprintf(stderr, "%s: %s\n", what, hth_err_detail());
        exit(1);
    }
}

static bool task_read(const char *task, const char *what, char *out, int cap)
{
    char path[300];
    snprintf(path, sizeof path, "/proc/self/task/%s/%s", task, what);
    FILE *f = fopen(path, "re");
    bool got = f != NULL && fgets(out, cap, f) != NULL;
    if (f != NULL) {
        fclose(f);
    }
    return got;
}

// Processor time of this process's thread `name`, in ns; 0: there is none.
static double thread_ns(const char *name)
{
    DIR *d = opendir("/proc/self/task");
    double ns = 0;
    for (struct dirent *e = d != NULL ? readdir(d) : NULL; e != NULL; e = readdir(d)) {
        char comm[32], used[96];
        bool it = task_read(e->d_name, "comm", comm, sizeof comm) &&
                  strncmp(comm, name, strlen(name)) == 0;
        if (it && task_read(e->d_name, "schedstat", used, sizeof used)) {
            ns += strtod(used, NULL);
        }
    }
    if (d != NULL) {
        closedir(d);
    }
    return ns;
}

typedef struct bench {
    hth_device *device;
    hth_stream *stream[2];
    hth_event *from[2], *to[2];
    char *far, *host;
    double worst;
} bench;

// Copies `bytes` in each wanted direction, a buffer at a time.
static void run(bench *b, double gb, bool up, bool down)
{
    static const char *const thread[2] = {"hth-h2d", "hth-d2h"};
    const bool wanted[2] = {up, down};
    double before[2], rate[2] = {NAN, NAN}, core[2] = {NAN, NAN};
    int copies = (int)(SECONDS * gb * 1e9 / (double)BUFFER) + 1;
    for (int i = 0; i < 2; i++) {
        before[i] = thread_ns(thread[i]);
    }
    for (int k = 0; k < copies; k++) {
        for (int i = 0; i < 2; i++) {
            char *far = b->far + (size_t)i * BUFFER, *host = b->host + (size_t)i * BUFFER;
            if (wanted[i] && k == 0) {
                check(hth_stream_record(b->stream[i], b->from[i]), "record");
            }
            if (wanted[i]) {
                check(
                    hth_stream_copy(b->stream[i], i == 0 ? far : host, i == 0 ? host : far, BUFFER),
                    "copy");
            }
        }
    }
    for (int i = 0; i < 2; i++) {
        if (wanted[i]) {
            check(hth_stream_record(b->stream[i], b->to[i]), "record");
        }
    }
    for (int i = 0; i < 2; i++) {
        check(hth_stream_sync(b->stream[i]), "sync");
        if (wanted[i]) {
            double ns = (double)(hth_event_time_ns(b->to[i]) - hth_event_time_ns(b->from[i]));
            rate[i] = copies * (double)BUFFER / ns;
            core[i] = (thread_ns(thread[i]) - before[i]) / ns;
            b->worst = fmax(b->worst, fabs(rate[i] / gb - 1));
        }
    }
    printf("| %.3g | %s | %.4f | %.4f | %.1f | %.1f |\n", gb,
           up && down ? "both" : (up ? "in" : "out"), rate[0], rate[1], 100 * core[0],
           100 * core[1]);
}

static void measure(bench *b, double gb)
{
    char spec[80];
    snprintf(spec, sizeof spec, "cpu:mem=256MiB,threads=1,link=%.6fGB/s", gb);
    check(hth_device_open(spec, &b->device), spec);
    check(hth_device_reserve(b->device, 2 * BUFFER, (void **)&b->far), "memory");
    check(hth_device_reserve_host(b->device, 2 * BUFFER, (void **)&b->host), "memory");
    memset(b->far, 1, 2 * BUFFER);
    memset(b->host, 2, 2 * BUFFER);
    for (int i = 0; i < 2; i++) {
        check(hth_stream_open(b->device, i == 0 ? HTH_STREAM_H2D : HTH_STREAM_D2H, &b->stream[i]),
              "stream");
        check(hth_event_open(b->device, &b->from[i]), "event");
        check(hth_event_open(b->device, &b->to[i]), "event");
    }
    run(b, gb, true, false);
    run(b, gb, false, true);
    run(b, gb, true, true);
    for (int i = 0; i < 2; i++) {
        hth_stream_close(b->stream[i]);
        hth_event_close(b->from[i]);
        hth_event_close(b->to[i]);
    }
    hth_device_release(b->device, b->far, 2 * BUFFER);
    hth_device_release_host(b->device, b->host, 2 * BUFFER);
    hth_device_close(b->device);
}

int main(int argc, char **argv)
{
    static const double usual[] = {0.1, 0.3, 0.5, 1, 1.5, 3};
    int n = argc > 1 ? argc - 1 : (int)(sizeof usual / sizeof *usual);
    bench b = {.worst = 0};
    printf("| set GB/s | direction | in GB/s | out GB/s | in, %% of a core | out, %% |\n"
           "|---:|---|---:|---:|---:|---:|\n");
    for (int i = 0; i < n; i++) {
        measure(&b, argc > 1 ? strtod(argv[i + 1], NULL) : usual[i]);
    }
    printf("\nThe furthest off is %.2f %%.\n", 100 * b.worst);
    return b.worst <= OFF ? 0 : 1;
}
