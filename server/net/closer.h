// SPDX-License-Identifier: Apache-2.0
// server/net/closer.h - closes descriptors that local users had a hand in.
//
// Design notes
// close() may block for as long as another user likes: a TCP socket with SO_LINGER waits for its
// peer, a file of a FUSE file system for the process that serves it. A descriptor that was passed
// is closed by the server when it is refused or used, and what was passed and never received is
// closed together with the Unix socket that it waits in. None of that may happen on a thread that
// others wait for. Therefore each user has a thread of his own for that, which runs while there is
// something to close: who blocks it blocks himself. Thread-safe; one for the whole process.
#ifndef HTH_SERVER_NET_CLOSER_H
#define HTH_SERVER_NET_CLOSER_H

#include <stdbool.h>
#include <stdint.h>

// hth_closer_close takes `fd` over, and closes it on the thread of user `uid`; root's and the
// server's own are closed at once. `counted`: after that it is given back to the count of local
// connections (accept_guard.h).
void hth_closer_close(uint64_t uid, int fd, bool counted);
// hth_closer_socket does the same with a connected Unix socket, at once where nothing waits in it.
void hth_closer_socket(uint64_t uid, int fd, bool counted);
// hth_closer_stuck tells whether so many descriptors of a user wait to be closed that no more may
// be taken from him.
bool hth_closer_stuck(uint64_t uid);

#endif
