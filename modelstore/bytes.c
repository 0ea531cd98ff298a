// SPDX-License-Identifier: Apache-2.0
// Tensors that are read from front to back once: an export of gigabytes must not have them mapped.
// The file is opened once, so what is read is one file's, also when an import replaces it meanwhile.
#include "modelstore/check.h"

#include <errno.h>
#include <string.h>
#include <unistd.h>

static hth_err bytes_open_file(hth_store *s, const hth_manifest_tensor *t, int *fd)
{
    const hth_object o = {t->id, t->dtype, t->shape, t->bytes};
    hth_object_seen seen;
    bool needed = false;
    HTH_TRY(hth_check_look(s, &o, &seen, &needed));
    if (needed) {
        HTH_TRY(hth_check_read(s, &o, false, NULL, NULL, &seen));
    }
    return hth_object_open(s, &t->id, t->bytes, false, fd, &seen);
}

hth_err hth_store_bytes_open(hth_store *s, const hth_manifest_tensor *t, hth_store_bytes *out)
{
    bool file = false;
    *out = (hth_store_bytes){.fd = -1, .bytes = t->bytes, .name = t->name};
    hth_err err = hth_object_is_file(s, &t->id, &file);
    if (err == HTH_ENOENT || (err == HTH_OK && !file)) { // the view says what is not there
        return hth_store_view(s, t, &out->view);
    }
    err = err == HTH_OK ? bytes_open_file(s, t, &out->fd) : err;
    return err == HTH_OK ? HTH_OK : hth_err_prefix(err, "tensor '%s'", t->name);
}

hth_err hth_store_bytes_read(const hth_store_bytes *b, uint64_t at, void *dst, size_t n)
{
    if (at > b->bytes || n > b->bytes - at) {
        return hth_fail(HTH_EINVAL, "tensor '%s' has %llu bytes", b->name,
                        (unsigned long long)b->bytes);
    }
    if (b->view != NULL) {
        memcpy(dst, (const char *)b->view->data + at, n);
        return HTH_OK;
    }
    for (size_t got = 0; got < n;) {
        ssize_t some = pread(b->fd, (char *)dst + got, n - got, (off_t)(at + got));
        if (some == 0 || (some < 0 && (errno == EIO || errno == EUCLEAN))) {
            return hth_fail(HTH_ECORRUPT, "tensor '%s': its file cannot be read from byte %llu on",
                            b->name, (unsigned long long)(at + got));
        }
        if (some < 0 && errno != EINTR) {
            return hth_fail_errno(errno, "reading tensor '%s'", b->name);
        }
        got += some > 0 ? (size_t)some : 0;
    }
    return HTH_OK;
}

void hth_store_bytes_close(hth_store_bytes *b)
{
    hth_const_rele(b->view);
    if (b->fd >= 0) {
        close(b->fd);
    }
    *b = (hth_store_bytes){.fd = -1};
}
