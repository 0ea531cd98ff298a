// SPDX-License-Identifier: Apache-2.0
// memmgr/spill.h - the far side of offloads as a file: bytes leave for a disk, past the page cache.
//
// Design notes
// Memory that is offloaded into the page cache is memory that was not saved, so the file is opened
// with O_DIRECT. That wants aligned addresses and lengths, which tensors do not have: each
// direction has one aligned block through which everything goes. Where a file system has no
// O_DIRECT, written pages are flushed and dropped at once. The file has no name: it is gone
// with the process.
#ifndef HTH_MEMMGR_SPILL_H
#define HTH_MEMMGR_SPILL_H

#include "base/err.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define HTH_SPILL_ALIGN 4096u // of positions in the file

typedef struct hth_spill hth_spill;

// hth_spill_open makes a file of `bytes` in directory `dir`, all of them reserved, so that the disk
// cannot be full in the middle of a step. HTH_ETOOBIG: the disk has no room.
hth_err hth_spill_open(const char *dir, uint64_t bytes, hth_spill **out);
void hth_spill_close(hth_spill *spill); // NULL is allowed

// hth_spill_write and hth_spill_read block until the bytes are there. `at`: a multiple of
// HTH_SPILL_ALIGN. One writer and one reader may be at work at the same time; they allocate
// nothing.
hth_err hth_spill_write(hth_spill *spill, uint64_t at, const void *from, size_t bytes);
hth_err hth_spill_read(hth_spill *spill, uint64_t at, void *to, size_t bytes);

// hth_spill_map gives a view of the whole file to read from: pages of the file, not memory of the
// process. Valid until hth_spill_unmap or the next write; one at a time.
hth_err hth_spill_map(hth_spill *spill, const void **out);
void hth_spill_unmap(hth_spill *spill); // allowed without a map

// hth_spill_buffer goes through the page cache, as where there is no O_DIRECT: for tests.
hth_err hth_spill_buffer(hth_spill *spill);

// What a planner wants to know of a link.
typedef struct hth_spill_speed {
    double write_bytes_per_s, read_bytes_per_s, latency_us;
} hth_spill_speed;
// hth_spill_measure writes and reads `bytes` (a few MiB at least) in `dir`: best of three.
hth_err hth_spill_measure(const char *dir, uint64_t bytes, hth_spill_speed *out);

#endif
