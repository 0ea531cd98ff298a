// SPDX-License-Identifier: Apache-2.0
// Copies between the device's memory and its far side, both of which are RAM. What leaves is not
// needed for long, and what comes back was planned for as being in memory: so large copies write
// past the caches. That spares reading what is overwritten, a third of the traffic, and leaves to
// the kernels what they have in the caches. Every thread copies a piece of its own.
#include "device/cpu/copy.h"

#include "device/cpu/team.h"

#include <stdint.h>
#include <string.h>
#if defined(__SSE2__)
#include <emmintrin.h>
#endif

#define COPY_LINE 64u
#define COPY_TEAM ((size_t)64 << 10) // fewer bytes: waking the team takes longer
#define COPY_PAST ((size_t)1 << 20)  // fewer bytes may be found in a cache by who reads them next

typedef struct copy_work {
    char *dst;
    const char *src;
    size_t bytes;
} copy_work;

void hth_copy_past(void *to, const void *from, size_t bytes)
{
    char *dst = to;
    const char *src = from;
#if defined(__SSE2__)
    if ((uintptr_t)dst % sizeof(__m128i) == 0) {
        size_t lines = bytes / COPY_LINE;
        for (size_t i = 0; i < lines; i++, dst += COPY_LINE, src += COPY_LINE) {
            for (size_t k = 0; k < COPY_LINE; k += sizeof(__m128i)) {
                __m128i v = _mm_loadu_si128((const __m128i *)(const void *)(src + k));
                _mm_stream_si128((__m128i *)(void *)(dst + k), v);
            }
        }
        _mm_sfence();
        bytes -= lines * COPY_LINE;
    }
#endif
    memcpy(dst, src, bytes);
}

static void copy_part(void *arg, int i, int n)
{
    const copy_work *w = arg;
    size_t begin, end;
    hth_team_range((w->bytes + COPY_LINE - 1) / COPY_LINE, i, n, &begin, &end);
    begin *= COPY_LINE;
    end = end * COPY_LINE < w->bytes ? end * COPY_LINE : w->bytes;
    if (w->bytes >= COPY_PAST) {
        hth_copy_past(w->dst + begin, w->src + begin, end - begin);
    } else {
        memcpy(w->dst + begin, w->src + begin, end - begin);
    }
}

void hth_team_copy(void *dst, const void *src, size_t bytes)
{
    copy_work w = {dst, src, bytes};
    if (bytes < COPY_TEAM) {
        memcpy(dst, src, bytes);
    } else {
        hth_team_run(copy_part, &w);
    }
}
