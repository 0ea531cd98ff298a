// SPDX-License-Identifier: Apache-2.0
// server/daemon/notify.h - tells the service manager how the daemon is (sd_notify's protocol,
// without its library).
#ifndef HTH_SERVER_DAEMON_NOTIFY_H
#define HTH_SERVER_DAEMON_NOTIFY_H

// hth_notify sends "READY=1", "STOPPING=1", .. to `socket`, which is $NOTIFY_SOCKET; NULL: there is
// no manager. Never blocks; who does not listen is not told.
void hth_notify(const char *socket, const char *state);

#endif
