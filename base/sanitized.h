// SPDX-License-Identifier: Apache-2.0
// base/sanitized.h - which sanitizer the code is compiled for: gcc says so by macros, clang by
// features.
#ifndef HTH_BASE_SANITIZED_H
#define HTH_BASE_SANITIZED_H

#ifdef __has_feature
#define HTH_HAS_FEATURE(x) __has_feature(x)
#else
#define HTH_HAS_FEATURE(x) 0
#endif

#if defined __SANITIZE_ADDRESS__ || HTH_HAS_FEATURE(address_sanitizer)
#define HTH_SANITIZED_ADDRESS 1
#else
#define HTH_SANITIZED_ADDRESS 0
#endif

#if defined __SANITIZE_THREAD__ || HTH_HAS_FEATURE(thread_sanitizer)
#define HTH_SANITIZED_THREAD 1
#else
#define HTH_SANITIZED_THREAD 0
#endif

#define HTH_SANITIZED                                                                              \
    (HTH_SANITIZED_ADDRESS || HTH_SANITIZED_THREAD || HTH_HAS_FEATURE(memory_sanitizer))

#endif
