// SPDX-License-Identifier: Apache-2.0
#include "device/cpu/paced_copy.h"

#include "base/clock.h"
#include "device/cpu/copy.h"

#define PIECE_NS  2000000u           // shorter ones wake the thread too often, at 5 to 15 us each
#define PIECE_MIN ((size_t)64 << 10) // of slow links, whose pieces may take longer
#define PIECE_MAX ((size_t)16 << 20) // of links that no memory keeps up with

// A multiple of a cache line, so that pieces are aligned as their copy is.
static size_t paced_piece(const hth_paced_link *link)
{
    double bytes = link->bytes_per_s / 1e9 * PIECE_NS;
    if (bytes >= (double)PIECE_MAX) {
        return PIECE_MAX;
    }
    size_t piece = (size_t)bytes / 64 * 64;
    return piece > PIECE_MIN ? piece : PIECE_MIN;
}

void hth_paced_copy(hth_paced_link *link, uint64_t ready_ns, void *dst, const void *src,
                    size_t bytes)
{
    const size_t piece = paced_piece(link);
    uint64_t from_ns = (ready_ns > link->free_ns ? ready_ns : link->free_ns) + HTH_LINK_LATENCY_NS;
    for (size_t at = 0; at < bytes;) {
        size_t n = bytes - at < piece ? bytes - at : piece;
        hth_copy_past((char *)dst + at, (const char *)src + at, n);
        at += n;
        link->free_ns = from_ns + (uint64_t)((double)at / link->bytes_per_s * 1e9);
        hth_sleep_until(link->free_ns);
    }
}
