// SPDX-License-Identifier: Apache-2.0
// base/mailbox.h - a bounded queue of pointers: many senders, one receiver.
//
// The receiver looks for `spin_ns` before it sleeps (spin.h).
#ifndef HTH_BASE_MAILBOX_H
#define HTH_BASE_MAILBOX_H

#include "base/err.h"
#include "base/spin.h"

#include <stddef.h>
#include <stdint.h>

typedef struct hth_mailbox hth_mailbox;

// hth_mailbox_open makes a queue of at most `capacity` messages (>= 1).
hth_err hth_mailbox_open(size_t capacity, uint64_t spin_ns, hth_mailbox **out);
// hth_mailbox_close frees the queue (NULL is allowed); no thread may be using it. Messages still
// inside are the caller's: stop, then receive until HTH_ECANCELED.
void hth_mailbox_close(hth_mailbox *mailbox);
// hth_mailbox_send appends a message; never waits for room. Any thread. HTH_EBUSY: full;
// HTH_ECANCELED: stopped; then the message stays the sender's.
hth_err hth_mailbox_send(hth_mailbox *mailbox, void *message);
// hth_mailbox_receive takes the oldest message, waiting at most `timeout_ns` of real time (0: does
// not wait; HTH_FOREVER). One thread. HTH_ETIMEDOUT: none came; HTH_ECANCELED: stopped and empty.
hth_err hth_mailbox_receive(hth_mailbox *mailbox, uint64_t timeout_ns, void **out);
// hth_mailbox_wake ends the receiver's present wait, or else its next one, with HTH_ETIMEDOUT. Any
// thread.
void hth_mailbox_wake(hth_mailbox *mailbox);
// hth_mailbox_stop refuses new messages and wakes the receiver, who still gets those accepted. Any
// thread, idempotent.
void hth_mailbox_stop(hth_mailbox *mailbox);
// hth_mailbox_set_poll has the receiver look into `hook` as well, which must stay as it is until
// the receiver has ended. Any thread, once.
void hth_mailbox_set_poll(hth_mailbox *mailbox, const hth_poll_hook *hook);
// hth_mailbox_count returns how many messages wait, a moment's truth, and looks into what is
// watched first. The receiver.
size_t hth_mailbox_count(hth_mailbox *mailbox);

#endif
