// SPDX-License-Identifier: Apache-2.0
// client/socket.h - a byte stream to a server, without threads: a Unix socket, TCP, or TLS over it.
//
// Every call blocks until `until_ns` (hth_now_ns) at most. Nothing is shared between streams; one
// is used by one thread at a time. TLS is OpenSSL's: the server's certificate must be signed by an
// authority of `ca_file` and be for the host, a name or an address, of the url; nothing is sent to
// a server before that is known.
#ifndef HTH_CLIENT_SOCKET_H
#define HTH_CLIENT_SOCKET_H

#include "base/err.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

typedef struct hth_socket hth_socket;

// hth_socket_open connects to ipc://PATH, tcp://HOST:PORT or tls+tcp://HOST:PORT. HTH_EINVAL: that
// is none of them; HTH_EIO: nobody is there; HTH_EDENIED: the certificate is not to be trusted, and
// why; HTH_ETIMEDOUT.
hth_err hth_socket_open(const char *url, const char *ca_file, uint64_t until_ns, hth_socket **out);
void hth_socket_close(hth_socket *socket); // NULL is allowed
// hth_socket_write writes all `bytes`, hth_socket_read reads exactly `bytes`. After an error the
// stream is good for nothing but closing. HTH_EIO: the other side is gone; HTH_ETIMEDOUT.
hth_err hth_socket_write(hth_socket *socket, const void *data, size_t bytes, uint64_t until_ns);
hth_err hth_socket_read(hth_socket *socket, void *data, size_t bytes, uint64_t until_ns);
// hth_socket_head writes a few bytes that may go with what is written next.
hth_err hth_socket_head(hth_socket *socket, const void *data, size_t bytes, uint64_t until_ns);
// hth_socket_wait tells whether something can be read before `until_ns`; the end of the stream is
// something, too.
bool hth_socket_wait(hth_socket *socket, uint64_t until_ns);

#endif
