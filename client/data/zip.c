// SPDX-License-Identifier: Apache-2.0
// An archive is read from its end: the record that ends it says where the central directory lies,
// whose entries say where the members do. What the members' own headers say besides their length is
// not needed.
#include "client/data/zip.h"

#include "base/alloc.h"

#include <string.h>

#define ZIP_END         22u // bytes of the record at the end, without its comment
#define ZIP_END64       56u
#define ZIP_LOCATOR     20u
#define ZIP_ENTRY       46u
#define ZIP_LOCAL       30u
#define ZIP_TAIL        (ZIP_END + 65535u + ZIP_LOCATOR)
#define ZIP_DIRECTORY   ((uint64_t)4 << 20) // most bytes of a central directory
#define ZIP_SIG_END     0x06054b50u
#define ZIP_SIG_LOCATOR 0x07064b50u
#define ZIP_SIG_END64   0x06064b50u
#define ZIP_SIG_ENTRY   0x02014b50u
#define ZIP_SIG_LOCAL   0x04034b50u
#define ZIP_ENCRYPTED   1u

typedef struct zip_place {
    const hth_file *file;
    const char *shown;
    uint64_t at, bytes; // of the central directory
} zip_place;

static uint32_t zip_u16(const uint8_t *p)
{
    return (uint32_t)p[0] | (uint32_t)p[1] << 8;
}

static uint32_t zip_u32(const uint8_t *p)
{
    return zip_u16(p) | zip_u16(p + 2) << 16;
}

static uint64_t zip_u64(const uint8_t *p)
{
    return zip_u32(p) | (uint64_t)zip_u32(p + 4) << 32;
}

static hth_err zip_damaged(const zip_place *place, const char *what)
{
    return hth_fail(HTH_ECORRUPT, "'%s' is no zip archive that can be read: %s", place->shown,
                    what);
}

// zip_end64 follows the locator before the record at the end.
static hth_err zip_end64(zip_place *place, const uint8_t *locator)
{
    uint8_t r[ZIP_END64];
    uint64_t at = zip_u64(locator + 8);
    if (zip_u32(locator) != ZIP_SIG_LOCATOR) {
        return zip_damaged(place, "its ZIP64 locator is missing");
    }
    if (at > place->file->bytes || place->file->bytes - at < sizeof r) {
        return zip_damaged(place, "its ZIP64 record lies outside of it");
    }
    HTH_TRY(hth_file_read(place->file, place->shown, at, r, sizeof r));
    if (zip_u32(r) != ZIP_SIG_END64) {
        return zip_damaged(place, "its ZIP64 record is missing");
    }
    place->bytes = zip_u64(r + 40);
    place->at = zip_u64(r + 48);
    return HTH_OK;
}

static hth_err zip_find(zip_place *place, uint8_t *tail)
{
    size_t n = place->file->bytes < ZIP_TAIL ? (size_t)place->file->bytes : ZIP_TAIL;
    HTH_TRY(hth_file_read(place->file, place->shown, place->file->bytes - n, tail, n));
    size_t at = n >= ZIP_END ? n - ZIP_END : 0;
    while (n >= ZIP_END && at > 0 && zip_u32(tail + at) != ZIP_SIG_END) {
        at--;
    }
    if (n < ZIP_END || zip_u32(tail + at) != ZIP_SIG_END) {
        return zip_damaged(place, "the end of its directory is missing, is it whole?");
    }
    place->bytes = zip_u32(tail + at + 12);
    place->at = zip_u32(tail + at + 16);
    if (zip_u16(tail + at + 10) == 0xFFFF || place->bytes == UINT32_MAX ||
        place->at == UINT32_MAX) {
        HTH_TRY(at >= ZIP_LOCATOR ? zip_end64(place, tail + at - ZIP_LOCATOR)
                                  : zip_damaged(place, "its ZIP64 locator is missing"));
    }
    if (place->at > place->file->bytes || place->bytes > place->file->bytes - place->at ||
        place->bytes > ZIP_DIRECTORY) {
        return zip_damaged(place, "its directory lies outside of it, or is too large");
    }
    return HTH_OK;
}

// Sizes of 32 ones are in the ZIP64 field of an entry, in this order.
static hth_err zip_sizes64(const zip_place *place, const uint8_t *extra, size_t n,
                           hth_zip_member *member)
{
    uint64_t *const wide[] = {&member->bytes, &member->packed, &member->from};
    for (size_t at = 0; at + 4 <= n; at += 4 + zip_u16(extra + at + 2)) {
        size_t left = zip_u16(extra + at + 2), k = at + 4;
        if (zip_u16(extra + at) != 1 || left > n - k) {
            continue;
        }
        for (int i = 0; i < 3; i++) {
            if (*wide[i] != UINT32_MAX) {
                continue;
            }
            if (left < 8) {
                return zip_damaged(place, "a ZIP64 field is too short");
            }
            *wide[i] = zip_u64(extra + k);
            k += 8;
            left -= 8;
        }
        return HTH_OK;
    }
    return HTH_OK;
}

// zip_data finds a member's data, after its own header.
static hth_err zip_data(const zip_place *place, hth_zip_member *member)
{
    uint8_t h[ZIP_LOCAL];
    uint64_t size = place->file->bytes;
    if (member->from > size || size - member->from < sizeof h) {
        return zip_damaged(place, "a member lies outside of it");
    }
    HTH_TRY(hth_file_read(place->file, place->shown, member->from, h, sizeof h));
    member->from += ZIP_LOCAL + zip_u16(h + 26) + zip_u16(h + 28);
    if (zip_u32(h) != ZIP_SIG_LOCAL || member->from > size ||
        member->packed > size - member->from) {
        return zip_damaged(place, "a member lies outside of it");
    }
    bool stored = member->kind == HTH_STREAM_STORED;
    if (stored ? member->bytes != member->packed
               : member->bytes / HTH_STREAM_RATIO > member->packed) {
        return hth_fail(HTH_ECORRUPT, "'%s': member '%s' claims %llu bytes in %llu", place->shown,
                        member->name, (unsigned long long)member->bytes,
                        (unsigned long long)member->packed);
    }
    return HTH_OK;
}

static hth_err zip_entry(const zip_place *place, const uint8_t *e, size_t name, size_t extra,
                         hth_zip_member *member)
{
    uint32_t method = zip_u16(e + 10);
    if (name >= HTH_ZIP_NAME || memchr(e + ZIP_ENTRY, 0, name) != NULL) {
        return zip_damaged(place, "a member's name is too long, or none");
    }
    memcpy(member->name, e + ZIP_ENTRY, name);
    member->name[name] = 0;
    if ((zip_u16(e + 8) & ZIP_ENCRYPTED) != 0 || (method != 0 && method != 8)) {
        return hth_fail(HTH_ENOTSUP, "'%s': member '%s' is %s; stored and deflated ones are read",
                        place->shown, member->name,
                        method != 0 && method != 8 ? "compressed by another method" : "encrypted");
    }
    member->kind = method == 0 ? HTH_STREAM_STORED : HTH_STREAM_DEFLATE;
    member->crc = zip_u32(e + 16);
    member->packed = zip_u32(e + 20);
    member->bytes = zip_u32(e + 24);
    member->from = zip_u32(e + 42);
    HTH_TRY(zip_sizes64(place, e + ZIP_ENTRY + name, extra, member));
    return zip_data(place, member);
}

static hth_err zip_members(const zip_place *place, const uint8_t *dir, int most,
                           hth_zip_member *out, int *n)
{
    size_t bytes = (size_t)place->bytes;
    *n = 0;
    for (size_t at = 0; bytes - at >= ZIP_ENTRY && zip_u32(dir + at) == ZIP_SIG_ENTRY;) {
        const uint8_t *e = dir + at;
        size_t name = zip_u16(e + 28), extra = zip_u16(e + 30), more = zip_u16(e + 32);
        if (name + extra + more > bytes - at - ZIP_ENTRY) {
            return zip_damaged(place, "an entry of its directory is cut off");
        }
        if (*n == most) {
            return hth_fail(HTH_ETOOBIG, "'%s' has more than %d members", place->shown, most);
        }
        HTH_TRY(zip_entry(place, e, name, extra, &out[*n]));
        ++*n;
        at += ZIP_ENTRY + name + extra + more;
    }
    return HTH_OK;
}

hth_err hth_zip_read(const hth_file *file, const char *shown, int most, hth_zip_member **members,
                     int *n)
{
    zip_place z = {file, shown, 0, 0};
    *members = NULL;
    *n = 0;
    uint8_t *tail = hth_alloc(ZIP_TAIL), *dir = NULL;
    hth_zip_member *m = hth_calloc((size_t)most, sizeof *m);
    hth_err err;
    if (tail == NULL || m == NULL) {
        err = hth_no_memory("the directory of '%s'", shown);
        goto done;
    }
    HTH_GOTO(zip_find(&z, tail), done);
    dir = hth_alloc((size_t)z.bytes + 1);
    if (dir == NULL) {
        err = hth_no_memory("the directory of '%s'", shown);
        goto done;
    }
    HTH_GOTO(hth_file_read(file, shown, z.at, dir, (size_t)z.bytes), done);
    err = zip_members(&z, dir, most, m, n);
done:
    hth_free(dir);
    hth_free(tail);
    if (err != HTH_OK) {
        hth_free(m);
        *n = 0;
        return err;
    }
    *members = m;
    return HTH_OK;
}
