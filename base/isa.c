// SPDX-License-Identifier: Apache-2.0
// The limit is the setting "kernels.vector_bytes"; programs set it by name from $HEARTH_ISA.
#include "base/isa.h"

#include "base/settings.h"

#include <string.h>

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
    limit = limit >= 64 ? 64 : limit >= 32 ? 32 : 16;
    return has < limit ? has : limit;
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
