// SPDX-License-Identifier: Apache-2.0
// client/events.h - what a server publishes about its training jobs.
//
// Design notes
// Next to every socket for requests lies one for events (nng publish/subscribe): PATH.events of
// ipc://PATH, NAME.events of inproc://NAME, the next port of tcp://HOST:PORT. A message is the
// topic "job/NAME", a zero byte, and the protobuf message Progressed. Who reads too slowly loses
// messages; nobody waits for anybody.
#ifndef HTH_CLIENT_EVENTS_H
#define HTH_CLIENT_EVENTS_H

#include "client/hearth.h"

#include "base/err.h"

#include <nng/nng.h>

#define HTH_EVENTS_TEXT 512 // bytes of what is said, its zero included

typedef struct hth_event {
    char what[HTH_EVENTS_TEXT]; // JSON
    uint64_t done, total;
} hth_event;

// hth_events_url is where the events of the server at `url` are published. HTH_ENOTSUP.
hth_err hth_events_url(const char *url, char *out, size_t cap);
// hth_events_write makes the message of an event about `job`.
hth_err hth_events_write(const char *job, const hth_event *event, nng_msg **out);

typedef struct hth_events hth_events;
// hth_events_open subscribes to the events of one job of the server that `handle` is connected to.
hth_err hth_events_open(const hearth *handle, const char *job, hth_events **out);
void hth_events_close(hth_events *events); // NULL is allowed
// hth_events_next waits for one. HTH_ETIMEDOUT.
hth_err hth_events_next(hth_events *events, uint64_t timeout_ms, hth_event *out);

#endif
