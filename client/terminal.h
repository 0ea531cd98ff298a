// SPDX-License-Identifier: Apache-2.0
// client/terminal.h - what the command writes to its two streams, kept from obeying others: a
// server's sentences, names out of models, and files may hold what a terminal obeys.
#ifndef HTH_CLIENT_TERMINAL_H
#define HTH_CLIENT_TERMINAL_H

#include <jansson.h>

#include <stdbool.h>

// hth_terminal_guard puts a filter into stdout and stderr, for good: what a terminal would obey
// (base/utf8.h) comes out as '?', newlines as they are. Before there are threads; false: errno.
bool hth_terminal_guard(void);
// hth_terminal_lost is why what was written to stdout did not arrive: errno of the first write that
// failed; 0: none has.
int hth_terminal_lost(void);
// hth_terminal_json says that stdout is JSON from here on: there it is escaped ("\u009b"), so that
// the document stays what it is.
void hth_terminal_json(void);
// hth_terminal_clear clears the line that stderr's cursor is in; it stands at its beginning then.
void hth_terminal_clear(void);

// hth_terminal_plain makes a document fit for people: each string in it becomes one line without
// what a terminal would obey. Its names may then not be those that the server knows.
void hth_terminal_plain(json_t *doc);
// hth_terminal_load decodes a server's document for people. NULL where it is not JSON; the caller
// owns it.
json_t *hth_terminal_load(const char *json);

#endif
