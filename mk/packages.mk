# SPDX-License-Identifier: Apache-2.0
# Debian packages and an OCI image of them, in build/dist. Both end with their tests: installed and used in a clean
# Debian, which takes root and Debian's mirror; without them these tests are skipped, and counted.
PACKAGES := build-aux/packages
TRY       = $(Q)HEARTH_BUILD='$(B)' HEARTH_TEST_SECONDS=1800 prove $(if $(V),-v) --timer --directives \
            -e 'sh build-aux/tap.sh'

.PHONY: deb image
deb: deps-system ## Debian packages of the last commit in build/dist, tried in a clean Debian; with nvcc also of the CUDA plug-in
	$(Q)CUDA_HOME='$(CUDA_HOME)' sh $(PACKAGES)/deb.sh $(B) $(if $(PLUGIN),pkg.hearth.cuda)
	$(TRY) $(PACKAGES)/deb_test.py
image: deps-system ## an OCI image of the packages, which deb makes, in build/dist; run read-only once
	$(Q)[ -n "$(wildcard $(B)/dist/hearth-server_$(VERSION)_*.deb)" ] || $(MAKE) --no-print-directory deb
	$(Q)sh $(PACKAGES)/image.sh $(B)
	$(TRY) $(PACKAGES)/image_test.py
