// SPDX-License-Identifier: Apache-2.0
// The limit is the setting "kernels.vector_bytes"; programs set it by name from $HEARTH_ISA.
#include "base/isa.h"

#include "base/settings.h"

#include <stdatomic.h>
#include <string.h>
#if defined(__x86_64__) && defined(__linux__)
#include <cpuid.h>
#include <sys/syscall.h>
#include <unistd.h>
#endif

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
    return has < vector ? has : vector;
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
    return v == 1 && hth_isa_bytes() >= 64;
}

hth_err hth_isa_limit(const char *name)
{
    static const char *const names[] = {"avx512", "avx2", "sse2"};
    static const char *const bytes[] = {"64", "32", "16"};
    if (name == NULL || name[0] == '\0') {
        return hth_setting_set("kernels.vector_bytes", "64");
    }
    for (int i = 0; i < 3; i++) {
        if (strcmp(name, names[i]) == 0) {
            return hth_setting_set("kernels.vector_bytes", bytes[i]);
        }
    }
    return hth_fail(HTH_EINVAL, "HEARTH_ISA: '%s' is not avx512, avx2 or sse2", name);
}
