// SPDX-License-Identifier: Apache-2.0
// client/forked.h - whether this process was forked from one that used hearth. Threads and what
// they hold stay behind in a fork: a connection of the parent is dead in the child, and so is nng.
#ifndef HTH_CLIENT_FORKED_H
#define HTH_CLIENT_FORKED_H

#include "base/err.h"

#include <stdbool.h>

// hth_forked_begin has forks counted from now on; hth_forks is how many there were between that
// and this process, in its own line of parents. Any thread; neither makes a system call twice.
void hth_forked_begin(void);
unsigned hth_forks(void);

#endif
