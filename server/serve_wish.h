// SPDX-License-Identifier: Apache-2.0
// server/serve_wish.h - what the batcher asks about programs, and the programs that it wishes for.
// Shared by serve*.c only.
#ifndef HTH_SERVER_SERVE_WISH_H
#define HTH_SERVER_SERVE_WISH_H

#include "server/serve.h"

// hth_serve_oracle opens s's batcher, with answers from the programs of its models.
void hth_serve_oracle(hth_serve *s);
// hth_serve_grant makes the program that m's requests wish for; one that cannot be had, or that
// would drive others out of the device's memory, is not asked for again for a while.
void hth_serve_grant(hth_serve *s, hth_model *m);

#endif
