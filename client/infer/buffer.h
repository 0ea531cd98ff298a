// SPDX-License-Identifier: Apache-2.0
// client/infer/buffer.h - memory that a local server maps too, so that tensors in it are passed by
// name.
//
// Design notes
// A buffer is a memfd sealed against shrinking and growing: the server opens it through
// /proc/PID/fd of the process that the kernel says is at the other end of the socket, checks the
// seals, and can then neither be made to fault nor be surprised by its size. Nothing has a name in
// the file system, so nothing stays behind a killed client. When the server cannot map it (another
// PID namespace, another user), the buffer is plain memory and its tensors travel in the message.
#ifndef HTH_CLIENT_INFER_BUFFER_H
#define HTH_CLIENT_INFER_BUFFER_H

#include "client/exchange.h"

// hth_buffer_find tells whether [data, data + bytes) lies in a buffer that the server has mapped:
// the region's id and the offset in it; region 0 when it does not. Maps it again after a reconnect.
// Any thread.
void hth_buffer_find(hearth *handle, const void *data, size_t bytes, uint32_t *region,
                     uint64_t *offset);
void hth_buffer_fini(hearth *handle); // frees what the caller left

#endif
