// SPDX-License-Identifier: Apache-2.0
// engine/process/proxy.h - an engine that is a child process: what engine.h promises, for engine.c.
//
// Design notes
// A child that dies takes nothing with it but the requests that it worked on: those are answered
// with HTH_EDEVLOST and a sentence, all others wait and go to the next child. Their inputs lie in
// memory of this process. Restarts are at once at first, then after pauses that double up to
// engine.restart_backoff_ms; once PROXY_LOST crashes have come in quick succession requests are
// refused until a child is up.
#ifndef HTH_ENGINE_PROCESS_PROXY_H
#define HTH_ENGINE_PROCESS_PROXY_H

#include "engine/engine.h"

// hth_proxy_open starts the process and waits until it has opened config->child_store and the
// device; its error is this one's.
hth_err hth_proxy_open(const hth_engine_config *config, hth_engine **out);

#endif
