// SPDX-License-Identifier: Apache-2.0
// server/rpc/inproc.h - requests from within the process: an nng rep socket on inproc:// urls.
//
// Clients inside the process are trusted and go with it: no limits, no time-outs. Everybody else
// comes through rpc.h.
#ifndef HTH_SERVER_RPC_INPROC_H
#define HTH_SERVER_RPC_INPROC_H

#include "server/rpc/dispatch.h"

typedef struct hth_inproc hth_inproc;

// hth_inproc_open makes the socket; everything given must outlive it.
hth_err hth_inproc_open(hth_dispatch *dispatch, hth_conns *conns, hth_rings *rings,
                        hth_inproc **out);
hth_err hth_inproc_listen(hth_inproc *inproc, const char *url);
// hth_inproc_halt ends all that is being received or sent. Afterwards no call into nng is in
// progress: nng 1.5 does not survive closing a socket while another thread is inside nng_ctx_send.
// Engine and job threads must have ended.
void hth_inproc_halt(hth_inproc *inproc);
void hth_inproc_close(hth_inproc *inproc); // before the dispatcher is closed; NULL is allowed

#endif
