// SPDX-License-Identifier: Apache-2.0
// Vectors: FIPS 180-4 examples (NIST CSRC, "SHA256.pdf") and the million-a vector of the same.
#include "base/test.h"

#include "base/id.h"

static void check(const char *text, const char *want)
{
    char hex[HTH_ID_HEX];
    hth_id id = hth_id_of(&(hth_chunk){text, strlen(text)}, 1);
    assert_string_equal(hth_id_hex(&id, hex), want);
}

static void test_vectors(void **state)
{
    check("", "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855");
    check("abc", "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad");
    check("abcdbcdecdefdefgefghfghighijhijkijkljklmklmnlmnomnopnopq",
          "248d6a61d20638b8e5c026930c3e6039a33ce45964ff2167f6ecedd419db06c1");
    char *a = hth_alloc(1000001);
    memset(a, 'a', 1000000);
    a[1000000] = '\0';
    check(a, "cdc76e5c9914fb9281a1c7e284d73e67f1809a48a497200e046d39ccc7112cd0");
    hth_free(a);
}

static void test_chunks(void **state)
{
    hth_chunk parts[] = {{"a", 1}, {NULL, 0}, {"bc", 2}};
    hth_id whole = hth_id_of(&(hth_chunk){"abc", 3}, 1), split = hth_id_of(parts, 3);
    assert_true(hth_id_equal(&whole, &split));
    split.byte[31] ^= 1;
    assert_false(hth_id_equal(&whole, &split));
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_vectors),
                                       cmocka_unit_test(test_chunks)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
