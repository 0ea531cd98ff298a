// SPDX-License-Identifier: Apache-2.0
// server/daemon/daemon_log.h - hearthd's log: one line an event, as key=value or JSON (log.format).
#ifndef HTH_SERVER_DAEMON_DAEMON_LOG_H
#define HTH_SERVER_DAEMON_DAEMON_LOG_H

#include "base/log.h"

#include <stdbool.h>
#include <stddef.h>
#include <time.h>

// hth_daemon_log_line writes the line of a record at `now`, without its end, and returns `out`.
// Text that is all key=value becomes fields, any other one field "message".
const char *hth_daemon_log_line(const hth_log_record *record, const struct timespec *now, bool json,
                                char *out, size_t cap);
// hth_daemon_log_process has every line say which process it comes from: process=NAME, a constant.
void hth_daemon_log_process(const char *name);
// hth_daemon_log_open makes stderr the sink, and takes log.level and log.format from the settings;
// to be called again when they changed.
void hth_daemon_log_open(void);

#endif
