// SPDX-License-Identifier: Apache-2.0
// There are two limits: the setting "kernels.vector_bytes", which programs set by name from
// $HEARTH_ISA, and that of the devices which are open.
#include "base/isa.h"

#include "base/settings.h"

#include <stdatomic.h>
#include <string.h>
#if defined(__x86_64__) && defined(__linux__)
#include <cpuid.h>
#include <sys/syscall.h>
#include <unistd.h>
#endif

static const struct {
    const char *name, *setting;
    int bytes;
} isa_sets[] = {{"avx512", "64", 64}, {"avx2", "32", 32}, {"sse2", "16", 16}};
#define N_SETS (sizeof isa_sets / sizeof *isa_sets)

static atomic_int isa_used;

static int isa_processor(void)
{
#if defined(__x86_64__)
    if (__builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
        __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl")) {
        return 64;
    }
    return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") ? 32 : 16;
#else
    return 16;
#endif
}

int hth_isa_bytes(void)
{
    int limit = (int)hth_setting_int(HTH_SET_VECTOR_BYTES), has = isa_processor();
    int vector = limit >= 32 ? 32 : 16;
    vector = limit >= 64 ? 64 : vector;
    vector = has < vector ? has : vector;
    int used = hth_isa_used();
    return used > 0 && used < vector ? used : vector;
}

void hth_isa_use(int bytes)
{
    atomic_store(&isa_used, bytes);
}

int hth_isa_used(void)
{
    return atomic_load_explicit(&isa_used, memory_order_relaxed);
}

#if defined(__x86_64__) && defined(__linux__)
#define ISA_REQUEST 0x1023 // ARCH_REQ_XCOMP_PERM
#define ISA_TILES   18     // XFEATURE_XTILEDATA

static bool isa_tiles(void)
{
    unsigned a, b, c, d;
    bool tiles = __get_cpuid_count(7, 0, &a, &b, &c, &d) && (d >> 22 & 1) && (d >> 24 & 1);
    bool rounds = tiles && __get_cpuid_count(7, 1, &a, &b, &c, &d) && (a >> 5 & 1);
    return rounds && syscall(SYS_arch_prctl, ISA_REQUEST, ISA_TILES) == 0;
}
#else
static bool isa_tiles(void)
{
    return false;
}
#endif

bool hth_isa_amx(void)
{
    static atomic_int known; // 0: not asked; asking twice does no harm
    int v = atomic_load(&known);
    if (v == 0) {
        v = isa_tiles() ? 1 : 2;
        atomic_store(&known, v);
    }
    return v == 1 && hth_isa_used() == 0 && hth_isa_bytes() >= 64;
}

int hth_isa_find(const char *name)
{
    for (size_t i = 0; i < N_SETS; i++) {
        if (strcmp(name, isa_sets[i].name) == 0) {
            return isa_sets[i].bytes;
        }
    }
    return 0;
}

const char *hth_isa_name(int bytes)
{
    size_t i = 0;
    while (i + 1 < N_SETS && isa_sets[i].bytes > bytes) {
        i++;
    }
    return isa_sets[i].name;
}

hth_err hth_isa_limit(const char *name)
{
    if (name == NULL || name[0] == '\0') {
        return hth_setting_set("kernels.vector_bytes", "64");
    }
    for (size_t i = 0; i < N_SETS; i++) {
        if (strcmp(name, isa_sets[i].name) == 0) {
            return hth_setting_set("kernels.vector_bytes", isa_sets[i].setting);
        }
    }
    return hth_fail(HTH_EINVAL, "HEARTH_ISA: '%s' is not avx512, avx2 or sse2", name);
}
