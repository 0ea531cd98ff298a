# SPDX-License-Identifier: Apache-2.0
# What pip installs on a machine without a compiler, and its test in a root that has nothing but Python (debootstrap).
.PHONY: wheel
wheel: export HEARTH_WHEEL = $(B)/dist
wheel: export HEARTH_TEST_SECONDS = 1800
wheel: deps-package ## a wheel for pip in build/dist, with library, plug-in and programs, and its test in a bare root
	$(Q)$(MAKE) --no-print-directory all
	$(Q)sh build-aux/wheel.sh $(B)
	$(RUN_TESTS) tests/package/wheel_test.py
