// SPDX-License-Identifier: Apache-2.0
// client/infer/submit.h - inferences that nobody waits for (hearth_submit), and their end.
//
// Design notes
// An engine in this process takes them as they come, up to its queue's length; the others wait
// here. What goes to a server is asked by threads of the connection, SUBMIT_WORKERS at most, that
// call hearth_infer. Whoever ends a call puts it into a list; callbacks are called from there, by
// one thread of the connection, or, once hearth_event_fd was called, by who calls
// hearth_event_run: never by the engine's thread, which they may keep waiting.
//
// A hearth_call is a number, which no other call of the process ever gets, and not an address: it
// need not be freed, and may be canceled at any time.
#ifndef HTH_CLIENT_INFER_SUBMIT_H
#define HTH_CLIENT_INFER_SUBMIT_H

#include "client/exchange.h"

// hth_submit_end returns when the callbacks of all calls have returned, and ends the threads.
// Before anything else of the connection is closed. false: this is a callback of the connection,
// whose thread, or hearth_event_run, closes it by hearth_close once that has returned.
bool hth_submit_end(hearth *handle);

#endif
