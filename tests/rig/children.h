// SPDX-License-Identifier: Apache-2.0
// tests/rig/children.h - the processes that a process has started, as the kernel lists them, and
// what an engine's process does whose parent is gone.
#ifndef HTH_TESTS_RIG_CHILDREN_H
#define HTH_TESTS_RIG_CHILDREN_H

#include <dirent.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/types.h>
#include <unistd.h>

// children_of stores up to `cap` children of `pid`, those of all its threads; returns how many.
static inline int children_of(pid_t pid, pid_t *out, int cap)
{
    char path[400], all[4096];
    int n = 0;
    snprintf(path, sizeof path, "/proc/%d/task", (int)pid);
    DIR *d = opendir(path);
    for (struct dirent *e; d != NULL && (e = readdir(d)) != NULL;) {
        snprintf(path, sizeof path, "/proc/%d/task/%s/children", (int)pid, e->d_name);
        FILE *f = fopen(path, "re");
        size_t got = f != NULL ? fread(all, 1, sizeof all - 1, f) : 0;
        all[got] = 0;
        for (char *at = all, *end; n < cap; at = end) {
            long child = strtol(at, &end, 10);
            if (end == at) {
                break;
            }
            out[n++] = (pid_t)child;
        }
        if (f != NULL) {
            fclose(f);
        }
    }
    if (d != NULL) {
        closedir(d);
    }
    return n;
}

// child_by_start is for qsort: of two that started at nearly the same time the elder comes first.
// Process ids go up, and begin anew at the end of their range.
static inline int child_by_start(const void *a, const void *b)
{
    pid_t x = *(const pid_t *)a, y = *(const pid_t *)b;
    bool wrapped = x - y > 16384 || y - x > 16384;
    return wrapped ? y - x : x - y;
}

// child_of is one child of `pid`; 0: it has none at this moment.
static inline pid_t child_of(pid_t pid)
{
    pid_t child = 0;
    return children_of(pid, &child, 1) > 0 ? child : 0;
}

// child_orphaned is for hth_child_config where the program is its own engine's process.
static inline void child_orphaned(void)
{
    _exit(3);
}

#endif
