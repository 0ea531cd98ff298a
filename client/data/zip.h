// SPDX-License-Identifier: Apache-2.0
// client/data/zip.h - the directory of a zip archive (PKWARE's APPNOTE 6.3.9), with ZIP64.
#ifndef HTH_CLIENT_DATA_ZIP_H
#define HTH_CLIENT_DATA_ZIP_H

#include "base/err.h"
#include "base/file.h"
#include "client/data/stream.h"

#define HTH_ZIP_NAME 200 // bytes of a member's name, with its end

typedef struct hth_zip_member {
    char name[HTH_ZIP_NAME];
    hth_stream_kind kind;
    uint64_t from, packed, bytes; // its data in the archive, and what they hold
    uint32_t crc;
} hth_zip_member;

// hth_zip_read lists the members of an archive: members[0 .. *n), freed by hth_free. HTH_ECORRUPT:
// it is no archive, a part of it lies outside of it, or a size cannot be; HTH_ENOTSUP: a member is
// encrypted or compressed otherwise than by deflate; HTH_ETOOBIG: more than `most` members.
hth_err hth_zip_read(const hth_file *file, const char *shown, int most, hth_zip_member **members,
                     int *n);

#endif
