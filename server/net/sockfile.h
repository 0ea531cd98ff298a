// SPDX-License-Identifier: Apache-2.0
// server/net/sockfile.h - who owns a local socket's path.
//
// Next to the socket lies PATH.lock, locked (flock) for as long as the owner lives, however it
// ends. Who has the lock may remove a socket that a dead owner left; who does not get it is the
// second one.
#ifndef HTH_SERVER_NET_SOCKFILE_H
#define HTH_SERVER_NET_SOCKFILE_H

#include "base/err.h"

// hth_sockfile_lock makes the file `path` and locks it until *fd is closed, by whatever end of the
// process. HTH_EBUSY with the sentence `taken`: another process has it.
hth_err hth_sockfile_lock(const char *path, const char *taken, int *fd);
// hth_sockfile_claim locks the path of an "ipc://" url and removes a stale socket; *fd holds the
// claim. Other urls: HTH_OK and -1. HTH_EBUSY: another process has it, or something that is no
// stale socket is in the way.
hth_err hth_sockfile_claim(const char *url, int *fd);
void hth_sockfile_release(const char *url, int fd); // -1 is allowed

#endif
