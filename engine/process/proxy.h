// SPDX-License-Identifier: Apache-2.0
// engine/process/proxy.h - an engine that is a child process: what engine.h promises, for engine.c.
//
// Design notes
// A child that dies takes nothing with it but the requests that it worked on: those are answered
// with HTH_EDEVLOST and a sentence, all others wait and go to the next child. Their inputs lie in
// memory of this process. Restarts are at once at first, then behind pauses that double up to
// engine.restart_ms; once PROXY_LOST deaths have come in quick succession requests are refused
// until a child is up.
#ifndef HTH_ENGINE_PROCESS_PROXY_H
#define HTH_ENGINE_PROCESS_PROXY_H

#include "engine/engine.h"

typedef struct hth_proxy hth_proxy;

// hth_proxy_open starts the process and waits until it has opened config->child_store and the
// device; its error is this one's.
hth_err hth_proxy_open(const hth_engine_config *config, hth_proxy **out);
hth_err hth_proxy_submit(hth_proxy *p, hth_request *r);
// hth_proxy_watch has the keeper look into `w` while it waits for the child (engine.h).
void hth_proxy_watch(hth_proxy *p, const hth_poll_hook *w);
bool hth_proxy_look(hth_proxy *p, bool on); // as hth_engine_look
void hth_proxy_drain(hth_proxy *p);
void hth_proxy_stop(hth_proxy *p);
void hth_proxy_close(hth_proxy *p); // NULL is allowed
bool hth_proxy_ready(hth_proxy *p);
uint64_t hth_proxy_stalled_ns(hth_proxy *p); // as hth_engine_stalled_ns
// hth_turn_age_ns is how long ago a turn was noted; 0: none was.
uint64_t hth_turn_age_ns(const _Atomic uint64_t *turned_ns);
void hth_proxy_share(hth_proxy *p, int fd, uint64_t offset, const void *base, size_t bytes);
void hth_proxy_unshare(hth_proxy *p, const void *base);
void *hth_proxy_alloc(hth_proxy *p, size_t bytes); // NULL: there is no more
bool hth_proxy_free(hth_proxy *p, void *block);    // false: is not from hth_proxy_alloc
void hth_proxy_release(hth_kept *kept);            // as hth_engine_release

#endif
