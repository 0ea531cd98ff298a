// SPDX-License-Identifier: Apache-2.0
// A block of SPILL_BLOCK bytes per direction is the only thing that the system call sees; copying
// into it costs a fraction of what any disk needs for it. What is written after a tensor's end, up
// to the next aligned position, belongs to the tensor's own range, which starts aligned.
#include "memmgr/spill.h"

#include "base/alloc.h"
#include "base/clock.h"
#include "base/opener.h"

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#define SPILL_BLOCK ((size_t)1 << 20)   // large enough for a disk's full speed
#define SPILL_PART  ((uint64_t)4 << 20) // of what is measured; its times hide those of a call

struct hth_spill {
    int fd;
    bool direct;
    uint64_t bytes;
    char *out, *in; // SPILL_BLOCK each
    void *map;      // NULL: none
};

static uint64_t spill_round(uint64_t bytes)
{
    return (bytes + HTH_SPILL_ALIGN - 1) / HTH_SPILL_ALIGN * HTH_SPILL_ALIGN;
}

static hth_err spill_reserve(hth_spill *spill, const char *dir)
{
    int rc = spill->bytes > 0 ? fallocate(spill->fd, 0, 0, (off_t)spill->bytes) : 0;
    if (rc != 0 && errno == EOPNOTSUPP) {
        rc = ftruncate(spill->fd, (off_t)spill->bytes);
    }
    if (rc == 0) {
        return HTH_OK;
    }
    bool full = errno == ENOSPC || errno == EFBIG;
    hth_err err = hth_fail_errno(errno, "cannot reserve %llu bytes in '%s'",
                                 (unsigned long long)spill->bytes, dir);
    return full ? HTH_ETOOBIG : err;
}

hth_err hth_spill_open(const char *dir, uint64_t bytes, hth_spill **out)
{
    *out = NULL;
    hth_spill *s = hth_calloc(1, sizeof *s);
    if (s == NULL) {
        return hth_no_memory("spilling to '%s'", dir);
    }
    hth_err err;
    s->fd = -1;
    s->bytes = spill_round(bytes);
    s->out = hth_alloc_aligned(SPILL_BLOCK, HTH_SPILL_ALIGN);
    s->in = hth_alloc_aligned(SPILL_BLOCK, HTH_SPILL_ALIGN);
    if (s->out == NULL || s->in == NULL) {
        err = hth_no_memory("spilling to '%s'", dir);
        goto fail;
    }
    HTH_GOTO(hth_open_scratch(dir, &s->fd), fail);
    HTH_GOTO(spill_reserve(s, dir), fail);
    int flags = fcntl(s->fd, F_GETFL);
    s->direct = flags >= 0 && fcntl(s->fd, F_SETFL, flags | O_DIRECT) == 0;
    *out = s;
    return HTH_OK;
fail:
    hth_spill_close(s);
    return err;
}

hth_err hth_spill_buffer(hth_spill *spill)
{
    int flags = fcntl(spill->fd, F_GETFL);
    if (flags < 0 || fcntl(spill->fd, F_SETFL, flags & ~O_DIRECT) != 0) {
        return hth_fail_errno(errno, "cannot change how the spill file is written");
    }
    spill->direct = false;
    return HTH_OK;
}

void hth_spill_close(hth_spill *spill)
{
    if (spill == NULL) {
        return;
    }
    hth_spill_unmap(spill);
    if (spill->fd >= 0) {
        close(spill->fd);
    }
    hth_free(spill->out);
    hth_free(spill->in);
    hth_free(spill);
}

// Moves one block whole, however many system calls that takes. After a short one the rest is not
// aligned any more, so the block is begun again from its last aligned byte.
static hth_err spill_block(const hth_spill *spill, char *block, size_t bytes, uint64_t at,
                           bool write)
{
    for (size_t done = 0; done < bytes;) {
        ssize_t n = write ? pwrite(spill->fd, block + done, bytes - done, (off_t)(at + done))
                          : pread(spill->fd, block + done, bytes - done, (off_t)(at + done));
        if (n < 0 && errno == EINTR) {
            continue;
        }
        size_t whole = n > 0 ? done + (size_t)n : done;
        whole = whole == bytes ? bytes : whole / HTH_SPILL_ALIGN * HTH_SPILL_ALIGN;
        if (n < 0 || whole == done) {
            int errnum = n < 0 ? errno : EIO;
            return hth_fail_errno(errnum, "cannot %s %zu bytes of the spill file",
                                  write ? "write" : "read", bytes);
        }
        done = whole;
    }
    return HTH_OK;
}

// Without O_DIRECT: flushes the range (written pages only) and gives its pages back.
static hth_err spill_forget(const hth_spill *spill, uint64_t at, size_t bytes, bool write)
{
    int rc = write ? sync_file_range(spill->fd, (off_t)at, (off_t)bytes,
                                     SYNC_FILE_RANGE_WAIT_BEFORE | SYNC_FILE_RANGE_WRITE |
                                         SYNC_FILE_RANGE_WAIT_AFTER)
                   : 0;
    // Other errors say that this file cannot be flushed so.
    if (rc != 0 && (errno == EIO || errno == ENOSPC || errno == EDQUOT)) {
        return hth_fail_errno(errno, "cannot write %zu bytes of the spill file", bytes);
    }
    posix_fadvise(spill->fd, (off_t)at, (off_t)bytes, POSIX_FADV_DONTNEED);
    return HTH_OK;
}

static hth_err spill_check(const hth_spill *spill, uint64_t at, size_t bytes)
{
    bool inside = bytes <= spill->bytes && at <= spill->bytes - bytes && at % HTH_SPILL_ALIGN == 0;
    return inside ? HTH_OK
                  : hth_fail(HTH_EINVAL, "%zu bytes at %llu are not in a spill file of %llu", bytes,
                             (unsigned long long)at, (unsigned long long)spill->bytes);
}

hth_err hth_spill_write(hth_spill *spill, uint64_t at, const void *from, size_t bytes)
{
    HTH_TRY(spill_check(spill, at, bytes));
    for (size_t done = 0; done < bytes; done += SPILL_BLOCK) {
        size_t part = bytes - done < SPILL_BLOCK ? bytes - done : SPILL_BLOCK;
        size_t whole = (size_t)spill_round(part);
        memcpy(spill->out, (const char *)from + done, part);
        memset(spill->out + part, 0, whole - part);
        HTH_TRY(spill_block(spill, spill->out, whole, at + done, true));
    }
    return spill->direct ? HTH_OK : spill_forget(spill, at, (size_t)spill_round(bytes), true);
}

hth_err hth_spill_read(hth_spill *spill, uint64_t at, void *to, size_t bytes)
{
    HTH_TRY(spill_check(spill, at, bytes));
    for (size_t done = 0; done < bytes; done += SPILL_BLOCK) {
        size_t part = bytes - done < SPILL_BLOCK ? bytes - done : SPILL_BLOCK;
        HTH_TRY(spill_block(spill, spill->in, (size_t)spill_round(part), at + done, false));
        memcpy((char *)to + done, spill->in, part);
    }
    return spill->direct ? HTH_OK : spill_forget(spill, at, (size_t)spill_round(bytes), false);
}

hth_err hth_spill_map(hth_spill *spill, const void **out)
{
    spill->map = mmap(NULL, (size_t)spill->bytes, PROT_READ, MAP_SHARED, spill->fd, 0);
    if (spill->map == MAP_FAILED) {
        spill->map = NULL;
        return hth_fail_errno(errno, "cannot map a spill file of %llu bytes",
                              (unsigned long long)spill->bytes);
    }
    *out = spill->map;
    return HTH_OK;
}

void hth_spill_unmap(hth_spill *spill)
{
    if (spill->map != NULL) {
        munmap(spill->map, (size_t)spill->bytes);
        spill->map = NULL;
        posix_fadvise(spill->fd, 0, (off_t)spill->bytes, POSIX_FADV_DONTNEED);
    }
}

// Measuring.

// One transfer of all bytes, in parts of SPILL_PART: what is measured is the disk, not how much
// memory there is.
static hth_err spill_measure_all(hth_spill *spill, char *part, uint64_t bytes, bool write)
{
    for (uint64_t at = 0; at < bytes; at += SPILL_PART) {
        size_t n = (size_t)(bytes - at < SPILL_PART ? bytes - at : SPILL_PART);
        HTH_TRY(write ? hth_spill_write(spill, at, part, n) : hth_spill_read(spill, at, part, n));
    }
    return HTH_OK;
}

static double spill_rate(uint64_t bytes, uint64_t from_ns, double best)
{
    double rate = (double)bytes * 1e9 / (double)(hth_now_ns() - from_ns + 1);
    return rate > best ? rate : best;
}

static hth_err spill_measure_rounds(hth_spill *spill, char *part, uint64_t bytes,
                                    hth_spill_speed *out)
{
    uint64_t min_ns = UINT64_MAX;
    for (int round = 0; round < 3; round++) {
        uint64_t from_ns = hth_now_ns();
        HTH_TRY(spill_measure_all(spill, part, bytes, true));
        out->write_bytes_per_s = spill_rate(bytes, from_ns, out->write_bytes_per_s);
        from_ns = hth_now_ns();
        HTH_TRY(spill_measure_all(spill, part, bytes, false));
        out->read_bytes_per_s = spill_rate(bytes, from_ns, out->read_bytes_per_s);
        from_ns = hth_now_ns();
        HTH_TRY(hth_spill_read(spill, 0, part, bytes < HTH_SPILL_ALIGN ? bytes : HTH_SPILL_ALIGN));
        uint64_t took_ns = hth_now_ns() - from_ns;
        min_ns = took_ns < min_ns ? took_ns : min_ns;
    }
    out->latency_us = (double)min_ns / 1e3;
    return HTH_OK;
}

hth_err hth_spill_measure(const char *dir, uint64_t bytes, hth_spill_speed *out)
{
    hth_spill *s;
    *out = (hth_spill_speed){0};
    HTH_TRY(hth_spill_open(dir, bytes, &s));
    char *part = hth_calloc(1, SPILL_PART);
    hth_err err =
        part ? spill_measure_rounds(s, part, bytes, out) : hth_no_memory("measuring '%s'", dir);
    hth_free(part);
    hth_spill_close(s);
    return err;
}
