// SPDX-License-Identifier: Apache-2.0
// server/net/tls.h - the server's certificate, for https:// and tls+tcp://.
//
// The files are tls.cert and tls.key (base/settings.h). A reload replaces both; connections that
// are there go on with what they began with. Thread-safe.
#ifndef HTH_SERVER_NET_TLS_H
#define HTH_SERVER_NET_TLS_H

#include "base/err.h"

#include <openssl/ssl.h>

typedef struct hth_tls hth_tls;

// hth_tls_open reads the files that the settings name. HTH_EINVAL: they are not named, cannot be
// read, or do not belong together.
hth_err hth_tls_open(hth_tls **out);
void hth_tls_close(hth_tls *tls); // after what it was given to; NULL is allowed
// hth_tls_reload reads the files again; on error everything stays.
hth_err hth_tls_reload(hth_tls *tls);

// hth_tls_session makes the server's side of the connection `fd`, for SSL_free; NULL: out of
// memory. It reads *reads times from the socket and then as if nothing more had come, until its
// owner, which goes on with others first, says HTH_TLS_READS again. *reads must outlive it.
#define HTH_TLS_READS 256
SSL *hth_tls_session(hth_tls *tls, int fd, int *reads);

#endif
