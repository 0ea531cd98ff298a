// SPDX-License-Identifier: Apache-2.0
#include "runtime/machine.h"

#include <inttypes.h>
#include <limits.h>
#include <stdio.h>
#include <string.h>

static FILE *machine_open(const hth_machine *machine, const char *name)
{
    char path[PATH_MAX];
    int n =
        snprintf(path, sizeof path, "%s/%s", machine->proc != NULL ? machine->proc : "/proc", name);
    return n < (int)sizeof path ? fopen(path, "re") : NULL;
}

// machine_ticks reads the first line of `stat`: user nice system idle iowait irq softirq steal.
static bool machine_ticks(const hth_machine *machine, uint64_t *busy, uint64_t *all,
                          uint64_t *taken)
{
    uint64_t v[8] = {0};
    FILE *f = machine_open(machine, "stat");
    int n = f != NULL ? fscanf(f,
                               "cpu %" SCNu64 " %" SCNu64 " %" SCNu64 " %" SCNu64 " %" SCNu64
                               " %" SCNu64 " %" SCNu64 " %" SCNu64,
                               &v[0], &v[1], &v[2], &v[3], &v[4], &v[5], &v[6], &v[7])
                      : 0;
    if (f != NULL) {
        fclose(f);
    }
    *all = 0;
    for (int i = 0; i < 8; i++) {
        *all += v[i];
    }
    *busy = *all - v[3] - v[4];
    *taken = v[7];
    return n >= 4;
}

bool hth_machine_read(hth_machine *machine)
{
    uint64_t busy, all, taken, kib, available = machine->total_bytes - machine->used_bytes;
    char line[128];
    bool moved =
        machine_ticks(machine, &busy, &all, &taken) && all > machine->all && busy >= machine->busy;
    if (moved) {
        double share = (double)(busy - machine->busy) / (double)(all - machine->all);
        machine->utilization = share < 1 ? share : 1;
        machine->stolen = taken > machine->taken
                              ? (double)(taken - machine->taken) / (double)(all - machine->all)
                              : 0;
        machine->taken = taken;
        machine->busy = busy;
        machine->all = all;
    }
    FILE *f = machine_open(machine, "meminfo");
    while (f != NULL && fgets(line, sizeof line, f) != NULL) {
        if (sscanf(line, "MemTotal: %" SCNu64, &kib) == 1) {
            machine->total_bytes = kib * 1024;
        } else if (sscanf(line, "MemAvailable: %" SCNu64, &kib) == 1) {
            available = kib * 1024;
        }
    }
    if (f != NULL) {
        fclose(f);
    }
    machine->used_bytes = machine->total_bytes > available ? machine->total_bytes - available : 0;
    return moved;
}
