// SPDX-License-Identifier: Apache-2.0
// server/server.h - a whole server: store, engine, and the sockets that clients talk to. What
// hearthd runs, and what "inproc://" embeds.
#ifndef HTH_SERVER_SERVER_H
#define HTH_SERVER_SERVER_H

#include "base/err.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

typedef struct hth_server hth_server;
typedef struct hth_request hth_request; // runtime/request.h

typedef struct hth_server_config {
    const char *store;         // directory; created if absent
    bool may_only_read;        // a store that cannot be written is opened read-only
    const char *device;        // "cpu:mem=2GiB,threads=2"; NULL: "cpu"
    const char *const *listen; // urls: ipc://, tcp://, inproc://
    int n_listen;
    const char *http;    // "127.0.0.1:8000", "https://..": the Open Inference Protocol; NULL: none
    const char *metrics; // the same for /metrics; only with http
    bool client_shm;     // HTTP clients may register shared memory
    bool resume; // the store is this server's alone: it goes on with training jobs that were
                 // interrupted, and reads what is stored now and then (scrub.h)
    bool child;  // the engine is a child process; see hth_engine_config
} hth_server_config;

// hth_server_open starts everything and listens last. Limits come from base/settings.h. HTH_EBUSY:
// another process listens on one of the urls. On error *out is NULL and nothing is held.
hth_err hth_server_open(const hth_server_config *config, hth_server **out);
// hth_server_reload reads tokens, limits of tenants, and certificates again. On error what could
// not be read stays as it was. One thread at a time.
hth_err hth_server_reload(hth_server *server);
// hth_server_drain refuses new requests, has training jobs saved, so that the next server on the
// store goes on with them, and answers every accepted request: those that run after five sixths of
// `limit_ns` are canceled. HTH_ETIMEDOUT: even so not all are answered; nothing but the end of the
// process is left then. To be followed by hth_server_close.
hth_err hth_server_drain(hth_server *server, uint64_t limit_ns);
// hth_server_stop refuses new requests, answers every accepted one, and then disconnects everybody.
// Requests that run after five sixths of drain.seconds are canceled, and training jobs saved.
// HTH_ETIMEDOUT: drain.seconds are over, and some are not answered even so. Everybody is
// disconnected then, but threads still work in the server.
hth_err hth_server_stop(hth_server *server);
// hth_server_infer hands an inference of this process to the engine; `here`: which computes it on
// the calling thread where it can (hth_engine_here). `token` (NULL: none) says who asks: `tenant`,
// of HTH_TENANT bytes that last until `done`, gets the name. Not once the server is stopped.
hth_err hth_server_infer(hth_server *server, const char *token, char *tenant, bool here,
                         hth_request *request);
int hth_server_http_port(const hth_server *server);    // 0: no HTTP
int hth_server_metrics_port(const hth_server *server); // 0: no metrics
// hth_server_close stops if needed, and frees; what could not be stopped is left as it is, until
// the process ends. NULL is allowed.
void hth_server_close(hth_server *server);

#endif
