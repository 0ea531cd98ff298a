// SPDX-License-Identifier: Apache-2.0
// base/file.h - files that somebody else may have put where they are, and may change at any time.
//
// Design notes
// Only regular files are opened: a FIFO blocks its opener, a device may act on being opened, and
// both would do so with the rights of this process. Therefore the name is looked up first, without
// opening what it stands for, and what is opened then is the very file that was looked at. Nothing
// is mapped: who touches a mapping whose file was cut is ended by SIGBUS. All sentences name the
// file by `shown`. Any thread; all of it may block for as long as the file system does.
#ifndef HTH_BASE_FILE_H
#define HTH_BASE_FILE_H

#include "base/err.h"

#include <stddef.h>
#include <stdint.h>

typedef struct hth_file {
    int fd; // the owner's, until hth_file_close
    uint64_t bytes;
    uint64_t changed_ns; // when it was written last, as the file system says
} hth_file;

// hth_file_open opens `path` for reading. On an error there is nothing to close: HTH_ENOENT and
// others by the system's reason, HTH_EINVAL: it is no regular file, and the sentence says what it
// is.
hth_err hth_file_open(const char *path, const char *shown, hth_file *out);
// hth_file_open_at opens `path` below the folder that `folder` is a descriptor of, however names
// change meanwhile: neither ".." nor a link leads out of it (HTH_EDENIED).
hth_err hth_file_open_at(int folder, const char *path, const char *shown, hth_file *out);
// hth_file_take looks at a descriptor that somebody passed, and takes it over; on an error it stays
// the caller's. HTH_EINVAL: it is no regular file; HTH_EDENIED: it is not open for reading, or its
// file system is one that a process may stand for, which then could keep us for ever, or one that
// this process does not see.
hth_err hth_file_take(int fd, const char *shown, hth_file *out);
// hth_file_take_to_write looks at one that shall be written in the same way; it stays the caller's.
hth_err hth_file_take_to_write(int fd, const char *shown);
// hth_file_again opens a file once more by a descriptor that was taken before, and stays the
// caller's.
hth_err hth_file_again(int fd, const char *shown, hth_file *out);
void hth_file_close(hth_file *file); // closed before, or zeroed with fd -1: nothing happens

// hth_file_read reads exactly `n` bytes at `at`. HTH_EIO: the file is shorter by now ("changed
// while it was read").
hth_err hth_file_read(const hth_file *file, const char *shown, uint64_t at, void *dst, size_t n);
// hth_file_unchanged: HTH_EIO, "changed while it was read", when its size or the time of its last
// change is another than when it was opened.
hth_err hth_file_unchanged(const hth_file *file, const char *shown);
// hth_file_load reads all of a file of at most `most` bytes (HTH_ETOOBIG): *out is hth_alloc'd,
// aligned to 64, with a zero after it.
hth_err hth_file_load(const char *path, size_t most, void **out, size_t *bytes);

// hth_file_load_open is the same for one that is open; `shown` names it.
hth_err hth_file_load_open(const hth_file *file, const char *shown, size_t most, void **out,
                           size_t *bytes);
// hth_file_load_own reads what the user of this very process named, of whatever kind: a regular
// file, a FIFO, a pipe, /dev/stdin; "-" is standard input. It waits for a writer, and reads to the
// end, for as long as that takes: never call it for a name that came from somebody else. At most
// `most` bytes (HTH_ETOOBIG; of a regular file before anything is read); *out is like
// hth_file_load's. `begins` (NULL: none) is asked once, when HTH_FILE_BEGINS bytes or all are
// there: its error, which gets the file's name, ends the reading, so that nobody waits for a
// gigabyte of something else; it may set *end: so many bytes are enough, and what follows them is
// left unread.
#define HTH_FILE_BEGINS ((size_t)128 << 10)
typedef hth_err (*hth_file_begins)(const void *data, size_t n, size_t *end);
hth_err hth_file_load_own(const char *path, size_t most, hth_file_begins begins, void **out,
                          size_t *bytes);

#endif
