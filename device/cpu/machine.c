// SPDX-License-Identifier: Apache-2.0
// Reads /proc and the control groups (version 2: the process's group and all its parents; version
// 1: the mount's root, which is the own group inside a container). Whatever cannot be read is no
// limit.
#include "device/cpu/machine.h"

#include "base/isa.h"

#include <inttypes.h>
#include <sched.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

// Reads up to two numbers from a file; "max" counts as no number. Returns how many were read.
static int machine_numbers(const char *path, uint64_t *a, uint64_t *b)
{
    FILE *f = fopen(path, "re");
    if (f == NULL) {
        return 0;
    }
    int n = fscanf(f, "%" SCNu64 " %" SCNu64, a, b);
    fclose(f);
    return n < 0 ? 0 : n;
}

// Calls fn with the directory of the process's group and of each parent.
static void machine_each_group(void (*fn)(const char *dir, void *arg), void *arg)
{
    char line[512], dir[600];
    FILE *f = fopen("/proc/self/cgroup", "re");
    while (f != NULL && fgets(line, sizeof line, f) != NULL) {
        if (strncmp(line, "0::", 3) == 0) {
            line[strcspn(line, "\n")] = '\0';
            snprintf(dir, sizeof dir, "/sys/fs/cgroup%s", line + 3);
            for (char *slash; (slash = strrchr(dir, '/')) >= dir + strlen("/sys/fs/cgroup");) {
                fn(dir, arg);
                *slash = '\0';
            }
        }
    }
    if (f != NULL) {
        fclose(f);
    }
    fn("/sys/fs/cgroup", arg);
}

static void machine_memory_limit(const char *dir, void *arg)
{
    char path[700];
    uint64_t v, unused;
    uint64_t *min = arg;
    snprintf(path, sizeof path, "%s/memory.max", dir);
    if (machine_numbers(path, &v, &unused) >= 1 && v < *min) {
        *min = v;
    }
}

uint64_t hth_machine_memory(void)
{
    uint64_t min = (uint64_t)sysconf(_SC_PHYS_PAGES) * (uint64_t)sysconf(_SC_PAGESIZE), v, unused;
    machine_each_group(machine_memory_limit, &min);
    if (machine_numbers("/sys/fs/cgroup/memory/memory.limit_in_bytes", &v, &unused) >= 1 &&
        v < min) {
        min = v;
    }
    return min;
}

static void machine_cpu_limit(const char *dir, void *arg)
{
    char path[700];
    uint64_t quota, period;
    int *min = arg;
    snprintf(path, sizeof path, "%s/cpu.max", dir);
    if (machine_numbers(path, &quota, &period) == 2 && period > 0 &&
        (quota + period - 1) / period < (uint64_t)*min) {
        *min = (int)((quota + period - 1) / period);
    }
}

int hth_machine_threads(void)
{
    cpu_set_t set;
    int n = sched_getaffinity(0, sizeof set, &set) == 0 ? CPU_COUNT(&set)
                                                        : (int)sysconf(_SC_NPROCESSORS_ONLN);
    machine_each_group(machine_cpu_limit, &n);
    return n < 1 ? 1 : n;
}

void hth_machine_name(char *out, size_t cap)
{
    char line[256];
    FILE *f = fopen("/proc/cpuinfo", "re");
    snprintf(out, cap, "processor");
    while (f != NULL && fgets(line, sizeof line, f) != NULL) {
        char *colon = strchr(line, ':');
        if (strncmp(line, "model name", 10) == 0 && colon != NULL) {
            line[strcspn(line, "\n")] = '\0';
            snprintf(out, cap, "%s", colon + 1 + strspn(colon + 1, " \t"));
            break;
        }
    }
    if (f != NULL) {
        fclose(f);
    }
}

int hth_machine_isa(char *out, size_t cap)
{
#if defined(__x86_64__)
    int bytes = hth_isa_bytes();
    if (bytes == 64 && hth_isa_used() > 0) {
        snprintf(out, cap, "AVX-512");
    } else if (bytes == 64) {
        const char *vnni = __builtin_cpu_supports("avx512vnni") ? " VNNI" : "";
        snprintf(out, cap, "AVX-512%s%s", vnni, hth_isa_amx() ? " AMX" : "");
    } else {
        snprintf(out, cap, "%s", bytes == 32 ? "AVX2" : "SSE2");
    }
    return bytes;
#else
    snprintf(out, cap, "scalar");
    return 16;
#endif
}

// Reads what the kernel says about one of processor 0's caches ("level", "type", "size").
static bool machine_cache_text(int index, const char *what, char out[32])
{
    char path[96];
    snprintf(path, sizeof path, "/sys/devices/system/cpu/cpu0/cache/index%d/%s", index, what);
    FILE *f = fopen(path, "re");
    bool known = f != NULL && fscanf(f, "%31s", out) == 1;
    if (f != NULL) {
        fclose(f);
    }
    return known;
}

uint64_t hth_machine_cache(int level)
{
    char text[32];
    for (int i = 0; machine_cache_text(i, "level", text); i++) {
        if (atoi(text) != level || !machine_cache_text(i, "type", text) ||
            strcmp(text, "Instruction") == 0 || !machine_cache_text(i, "size", text)) {
            continue;
        }
        char *unit;
        uint64_t size = strtoull(text, &unit, 10);
        if (*unit == 'K') {
            return size << 10;
        }
        return *unit == 'M' ? size << 20 : size;
    }
    return 0;
}
