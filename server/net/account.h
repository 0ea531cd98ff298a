// SPDX-License-Identifier: Apache-2.0
// server/net/account.h - the bytes of requests and answers that all front ends of the process hold
// for their clients, in one sum. Its limit is http.buffered_bytes. Any thread.
#ifndef HTH_SERVER_NET_ACCOUNT_H
#define HTH_SERVER_NET_ACCOUNT_H

#include <stdbool.h>
#include <stdint.h>

// hth_account_take counts bytes bytes more; false: they would be too many, and are not counted.
bool hth_account_take(uint64_t bytes);
// hth_account_add counts what is there anyway, or too small to be refused.
void hth_account_add(uint64_t bytes);
void hth_account_give(uint64_t bytes); // they are freed
uint64_t hth_account_bytes(void);
bool hth_account_full(void); // the sum is above its limit

#endif
