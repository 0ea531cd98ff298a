// SPDX-License-Identifier: Apache-2.0
#include "base/err.h"

#include "base/utf8.h"

#include <errno.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

// One sentence per thread; 1 KiB holds any name that the limits on names allow, twice.
static _Thread_local char err_detail[1024];

const char *hth_strerror(hth_err err)
{
    static const char *const text[HTH_N_ERR] = {
        [HTH_OK] = "ok",
        [HTH_EINVAL] = "invalid argument",
        [HTH_ENOENT] = "not found",
        [HTH_EEXIST] = "already exists",
        [HTH_EBUSY] = "busy",
        [HTH_EDENIED] = "permission denied",
        [HTH_ENOMEM] = "out of host memory",
        [HTH_ENODEVMEM] = "out of device memory for now",
        [HTH_ETOOBIG] = "too big",
        [HTH_EDEVLOST] = "device lost",
        [HTH_ECANCELED] = "canceled",
        [HTH_ECORRUPT] = "corrupt data",
        [HTH_ENOTSUP] = "not supported",
        [HTH_EIO] = "input/output error",
        [HTH_ETIMEDOUT] = "timed out",
    };
    return (unsigned)err < HTH_N_ERR ? text[err] : "unknown error";
}

hth_err hth_fail(hth_err err, const char *fmt, ...)
{
    va_list ap;
    va_start(ap, fmt);
    vsnprintf(err_detail, sizeof err_detail, fmt, ap);
    va_end(ap);
    hth_utf8_plain(err_detail); // names of models, nodes and files are others'
    return err;
}

hth_err hth_no_memory(const char *fmt, ...)
{
    static const char begin[] = "out of memory for ";
    size_t n = sizeof begin - 1;
    memcpy(err_detail, begin, n);
    va_list ap;
    va_start(ap, fmt);
    vsnprintf(err_detail + n, sizeof err_detail - n, fmt, ap);
    va_end(ap);
    hth_utf8_plain(err_detail);
    return HTH_ENOMEM;
}

hth_err hth_err_restore(hth_err err, const char *detail)
{
    return err == HTH_OK ? HTH_OK : hth_fail(err, "%s", detail);
}

static hth_err err_from_errno(int errnum)
{
    switch (errnum) {
    case ENOENT:
        return HTH_ENOENT;
    case EEXIST:
        return HTH_EEXIST;
    case EACCES:
    case EPERM:
    case EROFS:
        return HTH_EDENIED;
    case ENOMEM:
        return HTH_ENOMEM;
    case EBUSY:
    case EADDRINUSE:
        return HTH_EBUSY;
    case EINVAL:
        return HTH_EINVAL;
    case ETIMEDOUT:
        return HTH_ETIMEDOUT;
    default:
        return HTH_EIO;
    }
}

hth_err hth_fail_errno(int errnum, const char *fmt, ...)
{
    va_list ap;
    va_start(ap, fmt);
    vsnprintf(err_detail, sizeof err_detail, fmt, ap);
    va_end(ap);
    size_t n = strlen(err_detail);
    snprintf(err_detail + n, sizeof err_detail - n, ": %s", strerror(errnum));
    hth_utf8_plain(err_detail);
    return err_from_errno(errnum);
}

hth_err hth_err_prefix(hth_err err, const char *fmt, ...)
{
    if (err == HTH_OK) {
        return HTH_OK;
    }
    char old[sizeof err_detail];
    memcpy(old, err_detail, sizeof old);
    va_list ap;
    va_start(ap, fmt);
    vsnprintf(err_detail, sizeof err_detail, fmt, ap);
    va_end(ap);
    size_t n = strlen(err_detail);
    snprintf(err_detail + n, sizeof err_detail - n, ": %s", old[0] ? old : hth_strerror(err));
    hth_utf8_plain(err_detail);
    return err;
}

const char *hth_err_json(char *why)
{
    char *flags = strstr(why, " without JSON_");
    if (flags != NULL) {
        *flags = 0;
    }
    return why;
}

const char *hth_err_detail(void)
{
    return err_detail;
}
