// SPDX-License-Identifier: Apache-2.0
// nng keeps 32 bytes of headroom in front of a body; bodies are made HTH_WIRE_ID_BYTES too long and
// trimmed, so that they start where the receiver's will: 4 modulo 16, which wire.h's data section
// makes good.
#include "client/msg.h"

#include "base/alloc.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>

hth_err hth_msg_frame(const ProtobufCMessage *header, Hearth__Tensor *const *t, size_t n,
                      uint64_t data_bytes, const hth_wire_limits *limits, nng_msg **out,
                      uint8_t **data)
{
    size_t bytes;
    if (n > 0) {
        HTH_TRY(hth_wire_place(t, n, &data_bytes));
    }
    HTH_TRY(hth_wire_frame_bytes(header, data_bytes, limits, &bytes));
    int rv = nng_msg_alloc(out, bytes + HTH_WIRE_ID_BYTES);
    if (rv != 0) {
        return hth_msg_fail(rv, "no memory for a message of %zu bytes", bytes);
    }
    nng_msg_trim(*out, HTH_WIRE_ID_BYTES);
    *data = hth_wire_write(header, nng_msg_body(*out));
    hth_wire_pad(t, n, *data);
    return HTH_OK;
}

const uint8_t *hth_msg_aligned(const uint8_t *data, uint64_t data_bytes, void **copy)
{
    *copy = NULL;
    if ((uintptr_t)data % 8 == 0 || data_bytes == 0) {
        return data;
    }
    *copy = hth_alloc_aligned(data_bytes, 64);
    return *copy == NULL ? NULL : memcpy(*copy, data, data_bytes);
}

static hth_err msg_code(int rv)
{
    switch (rv) {
    case NNG_ENOMEM:
        return HTH_ENOMEM;
    case NNG_ETIMEDOUT:
        return HTH_ETIMEDOUT;
    case NNG_ECANCELED:
    case NNG_ECLOSED:
        return HTH_ECANCELED;
    case NNG_EPERM:
        return HTH_EDENIED;
    case NNG_EADDRINUSE:
        return HTH_EBUSY;
    case NNG_EINVAL:
    case NNG_EADDRINVAL:
        return HTH_EINVAL;
    case NNG_ENOTSUP:
        return HTH_ENOTSUP;
    default:
        return HTH_EIO;
    }
}

hth_err hth_msg_fail(int rv, const char *fmt, ...)
{
    char text[512];
    va_list ap;
    va_start(ap, fmt);
    vsnprintf(text, sizeof text, fmt, ap);
    va_end(ap);
    return hth_fail(msg_code(rv), "%s: %s", text, nng_strerror(rv));
}
