// SPDX-License-Identifier: Apache-2.0
// A CPU device's set link (cpu:link=RATE): the rate that large copies have, each direction alone
// and both at once, and what of a core their threads use.
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

typedef struct way { // a direction
    const char *name, *thread;
    hth_stream_kind kind;
    hth_stream *stream;
    hth_event *from, *to;
    char *dst, *src;
} way;

typedef struct bench {
    hth_device *device;
    way way[2];
    char *far, *host;
    double worst;
} bench;

static void issue(way *w, int copies)
{
    check(hth_stream_record(w->stream, w->from), "record");
    for (int k = 0; k < copies; k++) {
        check(hth_stream_copy(w->stream, w->dst, w->src, BUFFER), "copy");
    }
    check(hth_stream_record(w->stream, w->to), "record");
}

// Copies in directions first..last for about SECONDS, all at once.
static void run(bench *b, double gb, int first, int last)
{
    int copies = (int)(SECONDS * gb * 1e9 / (double)BUFFER) + 1;
    double before[2] = {0};
    for (int i = first; i <= last; i++) {
        before[i] = thread_ns(b->way[i].thread);
    }
    for (int i = first; i <= last; i++) {
        issue(&b->way[i], copies);
    }
    for (int i = first; i <= last; i++) {
        way *w = &b->way[i];
        check(hth_stream_sync(w->stream), "sync");
        double ns = (double)(hth_event_time_ns(w->to) - hth_event_time_ns(w->from));
        double rate = copies * (double)BUFFER / ns;
        printf("| %.3g | %s%s | %.4f | %.1f |\n", gb, w->name, first == last ? "" : ", both", rate,
               100 * (thread_ns(w->thread) - before[i]) / ns);
        b->worst = fmax(b->worst, fabs(rate / gb - 1));
    }
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
    b->way[0] = (way){.name = "in", .thread = "hth-h2d", .kind = HTH_STREAM_H2D};
    b->way[1] = (way){.name = "out", .thread = "hth-d2h", .kind = HTH_STREAM_D2H};
    b->way[0].dst = b->far;
    b->way[0].src = b->host;
    b->way[1].dst = b->host + BUFFER;
    b->way[1].src = b->far + BUFFER;
    for (int i = 0; i < 2; i++) {
        check(hth_stream_open(b->device, b->way[i].kind, &b->way[i].stream), "stream");
        check(hth_event_open(b->device, &b->way[i].from), "event");
        check(hth_event_open(b->device, &b->way[i].to), "event");
    }
    run(b, gb, 0, 0);
    run(b, gb, 1, 1);
    run(b, gb, 0, 1);
    for (int i = 0; i < 2; i++) {
        hth_stream_close(b->way[i].stream);
        hth_event_close(b->way[i].from);
        hth_event_close(b->way[i].to);
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
    printf("| set GB/s | direction | GB/s | %% of a core |\n|---:|---|---:|---:|\n");
    for (int i = 0; i < n; i++) {
        measure(&b, argc > 1 ? strtod(argv[i + 1], NULL) : usual[i]);
    }
    printf("\nThe furthest off is %.2f %%.\n", 100 * b.worst);
    return b.worst <= OFF ? 0 : 1;
}
