// SPDX-License-Identifier: Apache-2.0
#include "client/resolve.c" // the system's resolver is replaced

#include "base/test.h"

#include <arpa/inet.h>
#include <netinet/in.h>
#include <string.h>

// A machine without a list of hosts: addresses only.
static int addresses_only(const char *host, const char *port, const struct addrinfo *hint,
                          struct addrinfo **out)
{
    struct addrinfo numeric = *hint;
    numeric.ai_flags |= AI_NUMERICHOST;
    return getaddrinfo(host, port, &numeric, out);
}

static void expect_loopback(const char *host)
{
    const struct addrinfo hint = {.ai_family = AF_INET, .ai_socktype = SOCK_STREAM};
    struct addrinfo *found = NULL;
    assert_int_equal(hth_resolve(host, "7", &hint, &found), 0);
    const struct sockaddr_in *a = (const struct sockaddr_in *)found->ai_addr;
    assert_int_equal(ntohl(a->sin_addr.s_addr), INADDR_LOOPBACK);
    assert_int_equal(ntohs(a->sin_port), 7);
    freeaddrinfo(found);
}

static void test_localhost(void **state)
{
    const struct addrinfo hint = {.ai_socktype = SOCK_STREAM};
    struct addrinfo *found = NULL;
    resolve_by = addresses_only;
    expect_loopback("localhost");
    expect_loopback("LocalHost");
    expect_loopback("127.0.0.1");
    assert_int_not_equal(hth_resolve("localhost.example", NULL, &hint, &found), 0);
    assert_int_not_equal(hth_resolve("", NULL, &hint, &found), 0);
    resolve_by = getaddrinfo;
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_localhost)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
