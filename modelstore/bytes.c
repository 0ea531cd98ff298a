// SPDX-License-Identifier: Apache-2.0
// Tensors that are read from front to back once: an export of gigabytes must not have them mapped.
// The file is opened once, so what is read is one file's, also when an import replaces it
// meanwhile.
#include "modelstore/check.h"

#include <errno.h>
#include <string.h>
#include <unistd.h>

static hth_err bytes_open_file(hth_store *store, const hth_manifest_tensor *tensor, int *fd)
{
    const hth_object o = {tensor->id, tensor->dtype, tensor->shape, tensor->bytes};
    hth_object_seen seen;
    bool needed = false;
    HTH_TRY(hth_check_look(store, &o, &seen, &needed));
    if (needed) {
        HTH_TRY(hth_check_read(store, &o, false, NULL, NULL, &seen));
    }
    return hth_object_open(store, &tensor->id, tensor->bytes, false, fd, &seen);
}

hth_err hth_store_bytes_open(hth_store *store, const hth_manifest_tensor *tensor,
                             hth_store_bytes *out)
{
    bool file = false;
    *out = (hth_store_bytes){.fd = -1, .bytes = tensor->bytes, .name = tensor->name};
    hth_err err = hth_object_is_file(store, &tensor->id, &file);
    if (err == HTH_ENOENT || (err == HTH_OK && !file)) { // the view says what is not there
        return hth_store_view(store, tensor, &out->view);
    }
    if (err == HTH_OK) {
        err = bytes_open_file(store, tensor, &out->fd);
    }
    return hth_err_prefix(err, "tensor '%s'", tensor->name);
}

hth_err hth_store_bytes_read(const hth_store_bytes *bytes, uint64_t at, void *dst, size_t n)
{
    if (at > bytes->bytes || n > bytes->bytes - at) {
        return hth_fail(HTH_EINVAL, "tensor '%s' has %llu bytes", bytes->name,
                        (unsigned long long)bytes->bytes);
    }
    if (bytes->view != NULL) {
        memcpy(dst, (const char *)bytes->view->data + at, n);
        return HTH_OK;
    }
    for (size_t got = 0; got < n;) {
        ssize_t some = pread(bytes->fd, (char *)dst + got, n - got, (off_t)(at + got));
        if (some == 0 || (some < 0 && (errno == EIO || errno == EUCLEAN))) {
            return hth_fail(HTH_ECORRUPT, "tensor '%s': its file cannot be read from byte %llu on",
                            bytes->name, (unsigned long long)(at + got));
        }
        if (some < 0 && errno != EINTR) {
            return hth_fail_errno(errno, "reading tensor '%s'", bytes->name);
        }
        got += some > 0 ? (size_t)some : 0;
    }
    return HTH_OK;
}

void hth_store_bytes_close(hth_store_bytes *bytes)
{
    hth_const_rele(bytes->view);
    if (bytes->fd >= 0) {
        close(bytes->fd);
    }
    *bytes = (hth_store_bytes){.fd = -1};
}
