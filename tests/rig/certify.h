// SPDX-License-Identifier: Apache-2.0
// tests/rig/certify.h - a key, and a certificate for "localhost" that it signs itself, in files.
#ifndef HTH_TESTS_RIG_CERTIFY_H
#define HTH_TESTS_RIG_CERTIFY_H

#include "base/test.h"

#include <openssl/pem.h>
#include <openssl/x509.h>

#include <stdio.h>

static inline void certify(const char *cert, const char *key)
{
    EVP_PKEY *k = EVP_EC_gen("P-256");
    X509 *x = X509_new();
    assert_true(k != NULL && x != NULL);
    ASN1_INTEGER_set(X509_get_serialNumber(x), 1);
    X509_gmtime_adj(X509_getm_notBefore(x), 0);
    X509_gmtime_adj(X509_getm_notAfter(x), 3600);
    X509_set_pubkey(x, k);
    X509_NAME_add_entry_by_txt(X509_get_subject_name(x), "CN", MBSTRING_ASC,
                               (const unsigned char *)"localhost", -1, -1, 0);
    X509_set_issuer_name(x, X509_get_subject_name(x));
    assert_true(X509_sign(x, k, EVP_sha256()) > 0);
    FILE *file = fopen(cert, "w");
    assert_int_equal(PEM_write_X509(file, x), 1);
    fclose(file);
    file = fopen(key, "w");
    assert_int_equal(PEM_write_PrivateKey(file, k, NULL, NULL, 0, NULL, NULL), 1);
    fclose(file);
    X509_free(x);
    EVP_PKEY_free(k);
}

#endif
